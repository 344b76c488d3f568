// Keeps a running job's page current. Without this script the page reloads itself instead.
//
// The server renders everything: this fetches the same page again and swaps the fragments marked
// `data-live` whose markup changed. Nothing from the event stream is put into the page.
"use strict";

(() => {
  const body = document.body;
  const badge = document.getElementById("connection");
  const eventNames = [
    "job.queued", "job.started", "job.progress", "job.waiting", "task.profiled", "job.finished", "job.failed", "job.cancelled",
    "candidate.proposed", "candidate.compiled", "candidate.progress", "candidate.retried", "candidate.judged", "portfolio.changed", "proposer.failed", "proposer.finished", "budget.spent",
  ];
  let pending = null;
  let fetching = false;
  let again = false;
  let freshAt = 0;

  function say(text, css) {
    if (!badge) return;
    badge.hidden = false;
    badge.textContent = text;
    badge.className = "live " + css;
  }

  function swap(fresh) {
    const incoming = new Map();
    for (const part of fresh.querySelectorAll("[data-live]")) incoming.set(part.id, part);
    for (const old of document.querySelectorAll("[data-live]")) {
      const part = incoming.get(old.id);
      incoming.delete(old.id);
      if (!part) { old.remove(); continue; }
      if (part.isEqualNode(old.reference ?? old)) continue;
      const focused = old.contains(document.activeElement) ? document.activeElement : null;
      const reference = part.cloneNode(true);
      for (const details of old.querySelectorAll("details[id]")) {
        const twin = part.querySelector("#" + CSS.escape(details.id));
        if (twin && details.dataset.touched) { twin.open = details.open; twin.dataset.touched = "yes"; }
      }
      for (const box of old.querySelectorAll("input[type=checkbox]:checked")) {
        const twin = part.querySelector(`input[type=checkbox][value="${CSS.escape(box.value)}"]`);
        if (twin) twin.checked = true;
      }
      const scrolled = [...old.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
      part.reference = reference;
      old.replaceWith(part);
      part.querySelectorAll(".scroll").forEach((box, i) => {
        if (scrolled[i]) [box.scrollLeft, box.scrollTop] = scrolled[i];
      });
      const link = focused && focused.getAttribute("href");
      if (link) part.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
    }
    // Sections that did not exist before go where the fresh page has them.
    for (const part of incoming.values()) {
      let before = part.nextElementSibling;
      while (before && !(before.id && document.getElementById(before.id))) before = before.nextElementSibling;
      const place = before && document.getElementById(before.id);
      if (place) place.before(part);
      else if (part.parentElement?.id && document.getElementById(part.parentElement.id)) document.getElementById(part.parentElement.id).append(part);
    }
    document.title = fresh.title;
  }

  async function refresh() {
    if (fetching) { again = true; return null; }
    fetching = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      // The server masks the form token anew in each page; any of them is valid, and alone it changes nothing worth a swap.
      const token = document.querySelector('input[name="csrf"]')?.getAttribute("value");
      if (token) for (const field of fresh.querySelectorAll('input[name="csrf"]')) field.setAttribute("value", token);
      swap(fresh);
      return fresh;
    } catch {
      say("connection lost, retrying", "warn");
      return null;
    } finally {
      fetching = false;
      if (again) { again = false; soon(); }
    }
  }

  // Many events come at once; a page every 1.5 s is as current as a reader can be.
  function soon() {
    if (pending !== null) return;
    const wait = Math.max(200, freshAt + 1500 - Date.now());
    pending = setTimeout(() => { pending = null; freshAt = Date.now(); void refresh(); }, wait);
  }

  function follow(url, after) {
    const source = new EventSource(url + (after && after !== "0" ? "?after=" + encodeURIComponent(after) : ""));
    source.onopen = () => say("live", "good");
    source.onerror = () => say(source.readyState === EventSource.CLOSED ? "stream ended" : "reconnecting", "warn");
    const ended = async () => {
      source.close();
      const fresh = await refresh();
      if (fresh) { say("finished", "idle"); return; }
      setTimeout(ended, 1000);
    };
    for (const name of eventNames) {
      const isEnd = name === "job.finished" || name === "job.failed" || name === "job.cancelled";
      source.addEventListener(name, isEnd ? () => void ended() : soon);
    }
    source.onmessage = soon;
    // Clocks ("running for ...") move without events.
    const tick = setInterval(() => { if (source.readyState === EventSource.CLOSED) clearInterval(tick); else soon(); }, 10000);
  }

  function poll() {
    const timer = setInterval(async () => {
      if (document.hidden) return;
      const fresh = await refresh();
      if (fresh && fresh.body.dataset.poll !== "yes") clearInterval(timer);
    }, 3000);
  }

  document.addEventListener("toggle", (event) => {
    if (event.target instanceof HTMLDetailsElement) event.target.dataset.touched = "yes";
  }, true);

  if (body.dataset.events) follow(body.dataset.events, body.dataset.after);
  else if (body.dataset.poll === "yes") poll();
})();
