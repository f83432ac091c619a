// Players: the chosen runs side by side, round by round.
unpacked("players").then((players) => {
  const FRAME = 220; // milliseconds
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

  function canvas(width, height) {
    const made = element("canvas", { width: width * 2, height: height * 2 });
    const pen = made.getContext("2d");
    pen.scale(2, 2);
    return [made, pen];
  }

  // For each kind of picture: a canvas and a function that draws a frame on it.
  const KINDS = {
    "weights": (player, algorithm) => {
      const [width, height] = [260, 130];
      const [made, pen] = canvas(width, height);
      const below = player.ones === null ? 50 : 15; // levels below zero; a known true model is not negative
      const y = (level) => 3 + (50 - Math.max(level, -below)) / (50 + below) * (height - 6);
      return [made, (frame) => {
        const x = (i) => 2 + i / frame.length * (width - 4);
        pen.clearRect(0, 0, width, height);
        truth(pen, player, frame.length, x, y);
        const zero = color("--quiet");
        frame.forEach((level, i) => {
          pen.fillStyle = level === 0 ? zero : algorithm.color;
          pen.fillRect(x(i), y(level) - .75, 1.5, 1.5);
        });
      }];
    },
    "singular values": (player, algorithm) => {
      const [width, height] = [260, 130];
      const [made, pen] = canvas(width, height);
      const y = (level) => height - 3 - level / 50 * (height - 6);
      return [made, (frame) => {
        const step = (width - 4) / frame.length, x = (i) => 2 + i * step;
        pen.clearRect(0, 0, width, height);
        pen.fillStyle = algorithm.color;
        frame.forEach((level, i) => pen.fillRect(x(i) + .1 * step, y(level), .8 * step, y(0) - y(level)));
        truth(pen, player, frame.length, x, y);
      }];
    },
    "slices": (player) => {
      const slices = player.heights.length, { width, height } = player;
      const made = element("canvas", { className: "pixels", width: width * slices, height });
      const pen = made.getContext("2d");
      const image = pen.createImageData(width * slices, height);
      return [made, (frame) => {
        const dark = matchMedia("(prefers-color-scheme: dark)").matches;
        frame.forEach((level, i) => {
          const slice = Math.floor(i / (width * height)), row = Math.floor(i / width) % height, column = i % width;
          const strength = level === 0 ? 0 : .25 + .75 * Math.abs(level) / 50;
          const rest = player.mask[i] ? (dark ? 60 : 225) : (dark ? 21 : 255);
          const full = level > 0 ? [200, 40, 30] : [30, 90, 200];
          image.data.set([...full.map((value) => rest + strength * (value - rest)), 255],
            4 * (row * width * slices + slice * width + column));
        });
        pen.putImageData(image, 0, 0);
      }];
    },
  };

  function truth(pen, player, count, x, y) {
    if (player.ones === null) return;
    const level = 50 / player.limit;
    pen.strokeStyle = color("--ink");
    pen.setLineDash([3, 2]);
    pen.beginPath();
    pen.moveTo(x(0), y(level));
    pen.lineTo(x(player.ones), y(level));
    pen.lineTo(x(player.ones), y(0));
    pen.lineTo(x(count), y(0));
    pen.stroke();
  }

  function note(player) {
    if (player.kind === "slices") {
      return `Weights in the slices z = ${player.heights.join(", ")} mm, front at the top; red: towards face, blue: towards house.`;
    }
    const known = player.ones === null ? "" : " Dashed: the truth.";
    const notes = { "weights": "A dot is a weight; gray ones are zero.", "singular values": "A bar is a singular value of the matrix." };
    return notes[player.kind] + known;
  }

  function start(place, player) {
    const button = element("button", { type: "button", textContent: "▶ play" });
    const slider = element("input", { type: "range", min: 0, max: player.rounds.length - 1, value: 0, ariaLabel: "round" });
    const round = element("output");
    const panels = player.panels.map((panel) => {
      const [picture, draw] = KINDS[player.kind](player, player.algorithms[panel.algo]);
      const note = element("p", { className: "note" });
      const title = `${player.algorithms[panel.algo].label} ${panel.rates}`;
      picture.setAttribute("role", "img");
      picture.setAttribute("aria-label", title);
      const shown = element("div", {}, element("h4", { textContent: title }), picture, note);
      return { shown, show: (i) => { draw(panel.frames[i]); note.textContent = panel.texts[i]; } };
    });
    let timer = null;
    function show() {
      const i = Number(slider.value);
      round.textContent = `round ${player.rounds[i]}`;
      for (const panel of panels) panel.show(i);
    }
    function stop() {
      clearInterval(timer);
      timer = null;
      button.textContent = "▶ play";
    }
    button.addEventListener("click", () => {
      if (timer !== null) return stop();
      if (slider.value === slider.max) slider.value = 0;
      button.textContent = "⏸ pause";
      show();
      timer = setInterval(() => {
        slider.value = Number(slider.value) + 1;
        show();
        if (slider.value === slider.max) stop();
      }, FRAME);
    });
    slider.addEventListener("input", () => { stop(); show(); });
    place.append(element("div", { className: "bar" }, button, slider, round),
      element("div", { className: "panels" }, ...panels.map((panel) => panel.shown)),
      element("p", { className: "note", textContent: note(player) }));
    place.hidden = false;
    slider.value = slider.max;
    show();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  }

  for (const place of document.querySelectorAll(".player")) start(place, players[place.dataset.study]);
});
