"use strict";
const data = JSON.parse(document.getElementById("threshold").dataset.rows);
const $ = (name) => document.getElementById(name);
const last = data.values.length, positives = data.hits[last], negatives = data.alarms[last];
const chosen = data.values.filter((value) => value >= data.threshold).length;
const between = (k) => k === chosen ? data.threshold
  : k === 0 ? 1 : k === last ? 0 : (data.values[k - 1] + data.values[k]) / 2;
let asked = null;  // the share of positives that the reader gave; the field shows the rows' own rounded
const percent = (share) => Number.isFinite(share) ? (100 * share).toFixed(1) + " %" : "n/a";

function at(k) {
  const share = asked === null ? positives / (positives + negatives) : Math.min(Math.max(asked / 100, 0), 1);
  const recall = data.hits[k] / positives, alarms = data.alarms[k] / negatives;
  const flagged = share * recall + (1 - share) * alarms;
  const precision = share * recall / flagged;
  const cost = 1000 * ((1 - share) * alarms * +$("alarm").value + share * (1 - recall) * +$("miss").value);
  return { recall, alarms, flagged, precision, cost };
}

function show() {
  const k = +$("slider").value, now = at(k);
  $("value").textContent = between(k).toFixed(4) + (k === chosen ? " (the run's choice)" : "");
  $("recall").textContent = percent(now.recall);
  $("alarms").textContent = percent(now.alarms);
  $("precision").textContent = percent(now.precision);
  $("f1").textContent = percent(2 * now.precision * now.recall / (now.precision + now.recall));
  $("flagged").textContent = (1000 * now.flagged).toFixed(1);
  $("cost").textContent = Number.isFinite(now.cost) ? now.cost.toPrecision(4) : "n/a";
  $("missed").textContent = `${positives - data.hits[k]} of ${positives}`;
  $("wrong").textContent = `${data.alarms[k]} of ${negatives}`;
  const dot = $("dot");
  dot.setAttribute("cx", now.alarms * dot.dataset.width || 0);
  dot.setAttribute("cy", (1 - now.recall) * dot.dataset.height || 0);
}

function move(k) {
  $("slider").value = k;
  show();
}

$("slider").max = last;
$("share").value = (100 * positives / (positives + negatives)).toFixed(1);
$("alarm").value = data.alarm;
$("miss").value = data.miss;
$("share").addEventListener("input", () => { asked = +$("share").value; });
for (const name of ["slider", "share", "alarm", "miss"]) $(name).addEventListener("input", show);
$("own").addEventListener("click", () => move(chosen));
$("cheapest").addEventListener("click", () => {
  let best = 0;
  for (let k = 1; k <= last; k++) if (at(k).cost < at(best).cost) best = k;
  move(best);
});
move(chosen);
