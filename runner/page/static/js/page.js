// Times in the reader's zone, the newest line of a log, and a word when the server is gone.
"use strict";
(() => {
  const zoned = (root) => {
    for (const each of root.querySelectorAll("time[datetime]:not([data-age])")) {
      const at = new Date(each.dateTime);
      if (isNaN(at)) continue;
      each.textContent = "short" in each.dataset ? at.toLocaleTimeString() : at.toLocaleString();
    }
  };
  const left = new WeakSet();  // logs that the reader has scrolled away from their end
  const follow = (log) => { if (!left.has(log)) log.scrollTop = log.scrollHeight; };
  document.addEventListener("scroll", ({ target: log }) => {
    if (!(log instanceof Element) || !log.matches("pre.log")) return;
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    left[isAtEnd ? "delete" : "add"](log);
  }, true);
  const trouble = document.getElementById("trouble");
  const say = (text) => { trouble.textContent = text; };
  document.addEventListener("htmx:after:swap", () => {
    zoned(document);
    document.querySelectorAll("pre.log").forEach(follow);
  });
  let isGone = false;
  document.addEventListener("htmx:sse:error", (event) => {
    isGone = true;
    say(event.detail.status === 401
      ? "This browser is signed out. Open the link that runner ui printed."
      : "The server of this page does not answer. This page tries again by itself.");
  });
  document.addEventListener("htmx:sse:after:connection", () => {
    if (isGone) say("");
    isGone = false;
    // htmx closes the streams of a tab when it is hidden, but not of one that was opened hidden.
    setTimeout(() => document.hidden && document.dispatchEvent(new Event("visibilitychange")), 500);
  });
  document.addEventListener("DOMContentLoaded", () => zoned(document));
})();
