"use strict";
/* Puts into the page what the server has read since. Charts, what is open and what has the focus stay. */
(() => {
  const said = document.getElementById("follow");
  const AGAIN_MS = 3000; // until a server that refused is asked again
  const FOCUSABLE = "a, button, input, select, summary, [tabindex]";
  const served = new Map(); // by a section's id: its markup as it came
  let events = null;
  let isBusy = false;
  let isStale = false;

  const markup = (element) => new XMLSerializer().serializeToString(element);
  const figuresOf = (element) => new Map([...element.querySelectorAll("figure")].map((figure) => [figure.dataset.name, figure]));
  const called = (element) => [element.tagName, element.getAttribute("aria-label") ?? element.textContent].join(" ");

  /* Let a new element have what people did to the old one; call what is returned when it is in the page. */
  function keep(before, after) {
    const open = new Map([...before.querySelectorAll("details")].map((details) => [details.dataset.key, details.open]));
    for (const details of after.querySelectorAll("details")) details.open = open.get(details.dataset.key) ?? details.open;
    const scrolled = new Map([...before.querySelectorAll(".scroll, pre")].map((box) => [called(box), [box.scrollLeft, box.scrollTop]]));
    const active = document.activeElement;
    const name = before.contains(active) && called(active);
    return () => {
      for (const box of after.querySelectorAll(".scroll, pre")) box.scrollTo(...(scrolled.get(called(box)) ?? [0, 0]));
      const focused = after.contains(active) ? active : [...after.querySelectorAll(FOCUSABLE)].find((one) => called(one) === name);
      if (name) focused?.focus({ preventScroll: true });
    };
  }

  function replace(before, after) {
    const restore = keep(before, after);
    before.replaceWith(after);
    restore();
  }

  /* Move plots and controls into the new section, where they stay as they are. */
  function replaceCurves(before, after) {
    const tools = before.querySelector(".tools");
    const active = tools.contains(document.activeElement) ? document.activeElement : null;
    const restores = [() => active?.focus({ preventScroll: true })]; // what is moved loses it
    after.querySelector(".tools").replaceWith(tools);
    const olds = figuresOf(before);
    for (const [name, figure] of figuresOf(after)) {
      const old = olds.get(name);
      if (!old) continue;
      restores.push(keep(old, figure));
      const label = figure.querySelector(".plot").getAttribute("aria-label");
      for (const part of [".plot", ".live"]) figure.querySelector(part).replaceWith(old.querySelector(part));
      figure.querySelector(".plot").setAttribute("aria-label", label);
    }
    before.replaceWith(after);
    for (const restore of restores) restore();
  }

  function put(content) {
    const page = new DOMParser().parseFromString(content, "text/html");
    const main = document.querySelector("main");
    const header = page.querySelector("header");
    if (served.get("header") !== markup(header)) {
      served.set("header", markup(header));
      replace(document.querySelector("header"), header);
    }
    const sections = [...page.querySelectorAll("main > section")];
    for (const old of [...main.children]) if (!sections.some((section) => section.id === old.id)) old.remove();
    sections.forEach((section, index) => {
      const text = markup(section);
      const old = document.getElementById(section.id);
      if (!old) main.insertBefore(section, main.children[index] ?? null);
      else if (served.get(section.id) !== text) (section.id === "curves" ? replaceCurves : replace)(old, section);
      served.set(section.id, text);
    });
  }

  function fail() {
    said.textContent = "the server does not answer; the page shows what it got last";
  }

  async function update() {
    isStale = true;
    if (isBusy) return;
    isBusy = true;
    try {
      while (isStale) {
        isStale = false;
        const answer = await fetch("/data.json");
        if (!answer.ok) throw new Error(answer.statusText);
        const data = await answer.json();
        put(data.content);
        report.update(data.charts);
        said.textContent = data.ended ? "the run has ended" : "following the run";
      }
    } catch {
      fail();
    } finally {
      isBusy = false;
    }
  }

  function listen() {
    if (events || document.hidden) return;
    events = new EventSource("/events");
    events.onopen = events.onmessage = update;
    events.addEventListener("end", update);
    events.onerror = () => {
      fail();
      if (events?.readyState !== EventSource.CLOSED) return; // it asks again by itself
      events = null;
      setTimeout(listen, AGAIN_MS);
    };
  }

  /* A browser has few connections for all its tabs, so one that is hidden holds none. */
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      events?.close();
      events = null;
    } else listen();
  });
  listen();
})();
