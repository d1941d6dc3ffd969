"use strict";
(function () {
  // Without this script every barrier's dependences are shown below each other.
  document.body.classList.add("script");
  document.querySelectorAll(".kernel").forEach(watch);

  // One kernel: what names one of its barriers shows it, and nothing of other kernels.
  function watch(kernel) {
    const all = (selector) => Array.from(kernel.querySelectorAll(selector));
    const marked = all("[data-sync]");
    const drawn = all("g[data-name]");
    const enforced = all("[data-enforces]");
    const nothing = kernel.querySelector(".nothing");
    let kept = null;

    function show(name) {
      const detail = enforced.find((one) => one.dataset.enforces === name) || null;
      enforced.forEach((one) => one.classList.toggle("on", one === detail));
      nothing.hidden = detail !== null;
      const sides = new Set();
      if (detail !== null) {
        detail.querySelectorAll("li").forEach((one) => {
          sides.add(one.dataset.source).add(one.dataset.target).add(one.dataset.buffer);
        });
      }
      marked.forEach((one) => one.classList.toggle("on", one.dataset.sync === name));
      drawn.forEach((one) => one.classList.toggle("side", sides.has(one.dataset.name)));
    }

    marked.forEach((one) => {
      ["mouseenter", "focus"].forEach((event) => {
        one.addEventListener(event, () => show(one.dataset.sync));
      });
      ["mouseleave", "blur"].forEach((event) => one.addEventListener(event, () => show(kept)));
      one.addEventListener("click", (event) => {
        event.preventDefault();
        kept = kept === one.dataset.sync ? null : one.dataset.sync;
        show(kept);
      });
    });

    all("[data-stage]").forEach((box) => {
      box.addEventListener("change", () => {
        document.getElementById(box.dataset.stage).classList.toggle("hidden", !box.checked);
      });
    });

    show(null);
  }
})();
