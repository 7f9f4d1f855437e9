"use strict";
// what comes from the run is set as text, never as HTML
const asked = new URLSearchParams(location.search).get("token");
const query = asked ? "?token=" + encodeURIComponent(asked) : "";
const of = (id) => document.getElementById(id);

function say(id, text) {
  of(id).textContent = text;
}

function draw(id, values) {
  const svg = of(id);
  svg.replaceChildren();
  if (values.length < 2) return;
  const low = Math.min(...values), high = Math.max(...values), range = high - low || 1;
  const points = values.map((value, at) => {
    const x = (at / (values.length - 1)) * 396 + 2;
    return `${x.toFixed(1)},${(116 - ((value - low) / range) * 112).toFixed(1)}`;
  });
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
}

function row(rank) {
  const share = rank.exchanging === null ? "-" : `${Math.round(rank.exchanging * 100)} %`;
  const memory = `${Math.round(rank.resident / 2 ** 20)} MiB`;
  const cells = [rank.rank, rank.doing, rank.epoch, rank.step, Math.round(rank.samples_per_s), share,
    rank.cores.toFixed(2), memory, Math.round(rank.faults_per_s), rank.state];
  const line = document.createElement("tr");
  line.className = "Tt".includes(rank.state) ? "stopped" : /wait|MPI/.test(rank.doing) ? "waits" : "";
  for (const [at, cell] of cells.entries()) {
    const place = document.createElement("td");
    place.textContent = cell;
    place.className = at === 1 || at === 9 ? "text" : "";
    line.append(place);
  }
  return line;
}

function show(data) {
  say("run", data.run);
  const last = data.last;
  const mode = last.model ? `${last.model} on ${last.dataset}, ${last.sync_mode} over ${last.collective || last.store}` : "";
  say("about", `${data.rows.length} of ${last.n_ranks ?? "?"} ranks on this host, ${Math.round(data.samples_per_s)} samples/s. ${mode}`);
  for (const key of ["loss", "accuracy"]) {
    const values = data.epochs.map((epoch) => epoch[key]).filter((value) => typeof value === "number");
    say(key, values.length ? values[values.length - 1].toFixed(4) : "");
    draw(`${key}-curve`, values);
  }
  const nodes = Object.entries(data.placed).map(([node, size]) => `node ${node}: ${(size / 2 ** 20).toFixed(1)} MiB`);
  say("memory", nodes.length ? `Memory by NUMA node: ${nodes.join(", ")}` : "");
  const faults = Object.entries(data.faults).map(([name, value]) => `${name}: ${Math.round(value)}`);
  say("faults", data.ended ? "The job has ended." : faults.length ? `Faults: ${faults.join(", ")}` : "");
  of("ranks").replaceChildren(...data.rows.map(row));
}

async function look() {
  try {
    const answer = await fetch("data" + query);
    if (!answer.ok) throw new Error(answer.status);
    const data = await answer.json();
    show(data);
    if (data.ended) return;
  } catch (error) {
    say("faults", "The job, or psframe watch, has ended.");
    return;
  }
  setTimeout(look, 2000);
}

look();
