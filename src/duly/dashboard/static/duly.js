// Liveness and a few keys; every page works without it. A page fetches itself now and then and takes over its live parts.
(() => {
  "use strict";
  const EVERY_MS = 3000, SLOWEST_MS = 60000;
  const liveness = document.getElementById("liveness");
  const parts = () => document.querySelectorAll("[data-live]");
  let pause = EVERY_MS;

  const inUse = (part) => {
    const selection = getSelection();
    return part.contains(document.activeElement) || (!selection.isCollapsed && part.contains(selection.anchorNode));
  };

  const take = (part, fresh) => {
    const open = new Map([...part.querySelectorAll("details[id]")].map((d) => [d.id, d.open]));
    fresh.querySelectorAll("details[id]").forEach((d) => { if (open.has(d.id)) d.open = open.get(d.id); });
    if (part.innerHTML === fresh.innerHTML || inUse(part)) return;
    const at = [...part.querySelectorAll(".scroll, pre")].map((e) => [e.scrollLeft, e.scrollTop]);
    part.replaceChildren(...document.adoptNode(fresh).childNodes);
    part.querySelectorAll(".scroll, pre").forEach((e, n) => { if (at[n]) [e.scrollLeft, e.scrollTop] = at[n]; });
  };

  const refresh = async () => {
    if (document.hidden || !parts().length || !document.querySelector("nav")) return;
    try {
      const answer = await fetch(location.href, {
        headers: { "x-duly-live": "1" }, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(10000),
      });
      if (answer.status === 401) { location.reload(); return; }
      if (!answer.ok) throw new Error(answer.status);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      parts().forEach((part) => { const fresh = page.getElementById(part.id); if (fresh) take(part, fresh); });
      liveness.textContent = "";
      pause = EVERY_MS;
    } catch {
      liveness.textContent = "Not live: Duly does not answer. Trying again.";
      pause = Math.min(pause * 2, SLOWEST_MS);
    }
  };

  const loop = async () => { await refresh(); setTimeout(loop, pause); };
  setTimeout(loop, EVERY_MS);
  document.addEventListener("visibilitychange", refresh);

  const nav = document.querySelector("nav"), here = document.querySelector("nav [aria-current]");
  if (here) nav.scrollLeft = here.offsetLeft - nav.offsetLeft - (nav.clientWidth - here.offsetWidth) / 2;

  document.querySelectorAll("[data-copy]").forEach((button) => {
    if (!navigator.clipboard) return;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  });

  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    if (event.key === "/") {
      const field = document.querySelector(".filters input");
      if (field) { event.preventDefault(); field.focus(); }
    } else if (event.key === "g") {
      going = Date.now();
    } else if (Date.now() - going < 1500) {
      going = 0;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    }
  });
})();
