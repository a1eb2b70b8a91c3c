// Keeps the page of `fafed watch` up to date. It asks for a small state, and for the content only
// when a record is new. Charts, choices and open parts stay as they are.
"use strict";
(() => {
  const PAUSE = 1000; // ms
  const status = document.getElementById("watch");
  const report = document.getElementById("report");

  // The same chart has the same name before and after.
  const key = (box) => `${box.dataset.kind} ${box.getAttribute("aria-label")}`;
  const name = (details) => details.querySelector("summary").textContent;

  async function asked(path) {
    const answer = await fetch(path, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    return answer.text();
  }

  async function renew() {
    const page = new DOMParser().parseFromString(await asked("report"), "text/html");
    const fresh = page.getElementById("report");
    const open = new Set([...report.querySelectorAll("details[open]")].map(name));
    for (const details of fresh.querySelectorAll("details")) details.open = open.has(name(details));
    const kept = new Map();
    for (const box of report.querySelectorAll(".plot")) kept.set(key(box), box);
    report.replaceChildren(...fresh.childNodes);
    report.dataset.version = fresh.dataset.version;
    document.title = page.title;
    for (const box of report.querySelectorAll(".plot")) {
      const old = kept.get(key(box));
      if (!old) continue;
      kept.delete(key(box));
      old.dataset.index = box.dataset.index;
      box.replaceWith(old); // Plotly then changes the chart in place
    }
    for (const left of kept.values()) Plotly.purge(left);
    dispatchEvent(new Event("renewed"));
  }

  async function look() {
    try {
      const state = JSON.parse(await asked("state"));
      status.textContent = state.text;
      status.dataset.state = "on";
      if (state.version !== report.dataset.version) await renew();
    } catch (error) {
      status.textContent = "fafed watch does not answer: it has ended, or is starting again.";
      status.dataset.state = "off";
    }
    setTimeout(look, PAUSE);
  }

  look();
})();
