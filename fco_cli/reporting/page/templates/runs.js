// All runs: a sortable, filterable table with the curves of a selected run.
unpacked("data").then((data) => {
  const PAGE = 200; // rows shown before "Show all"
  const COLUMNS = [
    ["study", "study"], ["algo", "algorithm"], ["client_lr", "client lr"], ["server_lr", "server lr"],
    ["seed", "seed"], ["status", "status"], ["rule", "metric"], ["score", "score"], ["gap", "optimality gap"], ["rounds", "rounds"],
    ["megabytes", "MB"], ["seconds", "seconds"], ["id", "run"],
  ];
  const view = { sort: null, descending: false, all: false };
  const table = byId("run-table");
  if (!table) return;
  const filters = { study: "filter-study", algo: "filter-algo", status: "filter-status" };
  const shown = (run, key) => {
    if (key === "algo") return data.algorithms[run.algo].label;
    return run[key] === null ? "–" : String(run[key]);
  };

  function filtered() {
    const text = byId("filter-text").value.trim().toLowerCase();
    const wanted = Object.entries(filters).map(([key, id]) => [key, byId(id).value]);
    return data.runs.filter((run) =>
      wanted.every(([key, value]) => value === "" || run[key] === value) &&
      (text === "" || COLUMNS.some(([key]) => shown(run, key).toLowerCase().includes(text))));
  }

  function sorted(runs) {
    if (view.sort === null) return runs;
    const sign = view.descending ? -1 : 1;
    return [...runs].sort((a, b) => {
      const [x, y] = [a[view.sort], b[view.sort]];
      if (x === null || y === null) return (x === null) - (y === null); // missing values come last
      return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y)));
    });
  }

  function render() {
    const runs = sorted(filtered());
    const visible = view.all ? runs : runs.slice(0, PAGE);
    table.tBodies[0].replaceChildren(...visible.map(row));
    byId("count").textContent = `${runs.length} of ${data.runs.length} runs`;
    const more = byId("more");
    more.hidden = visible.length === runs.length;
    more.textContent = `Show all ${runs.length}`;
    for (const heading of table.tHead.rows[0].cells) {
      const mine = heading.dataset.key === view.sort;
      heading.setAttribute("aria-sort", mine ? (view.descending ? "descending" : "ascending") : "none");
    }
  }

  function row(run) {
    const cells = COLUMNS.map(([key]) => element("td", { textContent: shown(run, key) }));
    const dot = element("span", { className: "dot" });
    dot.style.background = data.algorithms[run.algo].color;
    cells[1].prepend(dot);
    const made = element("tr", { className: "run", tabIndex: 0 }, ...cells);
    made.addEventListener("click", () => toggle(made, run));
    made.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(made, run); });
    return made;
  }

  function toggle(after, run) {
    if (after.nextElementSibling?.classList.contains("detail")) return after.nextElementSibling.remove();
    const metrics = Object.keys(run.curves).filter((metric) => metric !== "round"); // none for a diverged run
    const finals = Object.entries(run.final).map(([name, value]) => `${name} ${value ?? "not finite"}`).join(", ");
    const cell = element("td", { colSpan: COLUMNS.length },
      element("div", { className: "curves" }, ...metrics.map((metric) => plot(run, metric))),
      element("p", { className: "note", textContent: `${run.folder}: ${finals}` }));
    after.after(element("tr", { className: "detail" }, cell));
  }

  function plot(run, metric) {
    const [width, height, left, right, top, bottom] = [224, 144, 40, 8, 20, 18];
    const style = data.metrics[metric];
    const given = run.curves[metric].map((value, i) => [run.curves.round[i], value]).filter((p) => p[1] !== null);
    const log = style.log && given.length > 0 && given.every((p) => p[1] > 0);
    const points = given.map(([x, y]) => [x, log ? Math.log10(y) : y]);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    svg.append(label(left, 13, style.label + (log ? " (log)" : ""), "start"));
    if (points.length === 0) return svg;
    const ends = (axis) => [Math.min(...points.map((p) => p[axis])), Math.max(...points.map((p) => p[axis]))];
    const [[x0, x1], [y0, y1]] = [ends(0), ends(1)];
    const x = (value) => left + (value - x0) / (x1 - x0 || 1) * (width - left - right);
    const y = (value) => height - bottom - (value - y0) / (y1 - y0 || 1) * (height - top - bottom);
    const format = (value) => Number((log ? 10 ** value : value).toPrecision(3)).toString();
    svg.append(
      shape("path", { d: `M${left} ${top}V${height - bottom}H${width - right}`, stroke: "currentColor", fill: "none" }),
      label(left - 3, y(y1) + 4, format(y1), "end"), label(left - 3, y(y0), format(y0), "end"),
      label(left, height - 5, String(x0), "start"), label(width - right, height - 5, `round ${x1}`, "end"),
      shape("polyline", {
        points: points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" "),
        fill: "none", stroke: data.algorithms[run.algo].color, "stroke-width": 1.5,
      }));
    return svg;
  }

  function shape(name, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function label(x, y, text, anchor) {
    const made = shape("text", { x, y, "text-anchor": anchor });
    made.textContent = text;
    return made;
  }

  table.tHead.append(element("tr", {}, ...COLUMNS.map(([key, title]) => {
    const button = element("button", { type: "button", textContent: title });
    button.addEventListener("click", () => {
      view.descending = view.sort === key && !view.descending;
      view.sort = key;
      render();
    });
    const heading = element("th", { scope: "col" }, button);
    heading.dataset.key = key;
    return heading;
  })));
  for (const [key, id] of Object.entries(filters)) {
    fill(byId(id), [...new Set(data.runs.map((run) => run[key]))],
      (value) => key === "algo" ? data.algorithms[value].label : value);
    byId(id).addEventListener("change", render);
  }
  byId("filter-text").addEventListener("input", render);
  byId("more").addEventListener("click", () => { view.all = true; render(); });
  render();
});
