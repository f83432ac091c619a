"use strict";
const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
const byId = (id) => document.getElementById(id);

// Data of the page: base64 of zlib-compressed JSON.
async function unpacked(id) {
  const packed = Uint8Array.from(atob(byId(id).textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function fill(select, values, label = (value) => value) {
  select.append(element("option", { value: "", textContent: "all" }),
    ...values.map((value) => element("option", { value, textContent: label(value) })));
}

// Contents: folded on narrow screens, with the current section highlighted.
(() => {
  const details = document.querySelector("#menu details");
  const wide = matchMedia("(min-width: 64rem)");
  const fold = () => { details.open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  const links = new Map([...document.querySelectorAll("#menu a")].map((link) => [link.hash.slice(1), link]));
  details.addEventListener("click", (event) => { if (event.target.closest("a") && !wide.matches) details.open = false; });
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const [id, link] of links) {
        if (id === entry.target.id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  for (const section of document.querySelectorAll("main > section")) seen.observe(section);
  for (const image of document.querySelectorAll("img[data-copy]")) {
    image.src = byId(image.dataset.copy).querySelector("img").src;
  }
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", () => navigator.clipboard.writeText(button.previousElementSibling.textContent));
  }
})();

// Claims: filtered by verdict, part, experiment and text.
(() => {
  if (!byId("claims")) return;
  const rows = [...document.querySelectorAll("#claim-table tbody tr")];
  const filters = ["verdict", "group", "experiment"].map((key) => [key, byId(`claim-${key}`)]);
  const text = byId("claim-text");
  const RUN = "what was run";
  function render() {
    const wanted = text.value.trim().toLowerCase();
    let count = 0;
    for (const row of rows) {
      const matches = ([key, { value }]) => value === "" || row.dataset[key] === value ||
        (value === RUN && "run" in row.dataset);
      const shown = filters.every(matches) &&
        row.textContent.toLowerCase().includes(wanted);
      row.hidden = !shown;
      count += shown;
    }
    byId("claim-count").textContent = `${count} of ${rows.length} tests`;
  }
  function show(wanted) {
    text.value = "";
    for (const [key, select] of filters) select.value = wanted[key] ?? "";
    render();
  }
  for (const [key, select] of filters) {
    fill(select, [...new Set(rows.map((row) => row.dataset[key]))]);
    select.addEventListener("change", render);
  }
  if (rows.some((row) => "run" in row.dataset)) {
    const verdicts = byId("claim-verdict");
    verdicts.prepend(element("option", { value: RUN, textContent: RUN }));
    verdicts.value = RUN;
  }
  text.addEventListener("input", render);
  for (const link of document.querySelectorAll("a[data-experiment]")) {
    link.addEventListener("click", () => show({ experiment: link.dataset.experiment }));
  }
  for (const tile of document.querySelectorAll("button[data-verdict]")) {
    tile.addEventListener("click", () => {
      show({ verdict: tile.dataset.verdict });
      byId("claims").scrollIntoView();
    });
  }
  function showLinkedClaim() { // a link to a claim resets the filters that hide it
    const row = rows.find((one) => `#${one.id}` === location.hash);
    if (!row) return;
    show({});
    row.querySelector("details").open = true;
    row.scrollIntoView();
  }
  addEventListener("hashchange", showLinkedClaim);
  render();
  showLinkedClaim();
})();
