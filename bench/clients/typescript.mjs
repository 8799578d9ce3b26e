// The TypeScript SDK on Node: the cases of measure.py, which says what a client of the bench is, told again for it.
//
// Driven in the fastest way its documentation has: the handshake with no probe before it (its default), the cap on a
// message raised (it is 10 MiB), and lists with `cacheMode: "bypass"`: else each is turned into JSON again for a cache,
// in which every call then looks for an output schema.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

// The package lives in .env/, where the search from this file does not come by; its own package.json names its doors.
const home = new URL("../../.env/bench-typescript/node_modules/@modelcontextprotocol/client/", import.meta.url);
const { exports: doors } = JSON.parse(readFileSync(new URL("package.json", home), "utf8"));
const load = (door) => import(new URL(doors[door].import.default, home));
const { Client, StreamableHTTPClientTransport } = await load(".");
const { StdioClientTransport } = await load("./stdio");

const MB = 1e6; // all sizes here are decimal; only the kernel counts in KiB
const MARK = `bench-${process.pid}`; // stands in the command line of each server of this process
const OWN_TOOLS = 3;

// --- measuring ----------------------------------------------------------------------------------------------------

const clock = () => performance.now(); // ms

function cpuClock() {
  const { user, system } = process.cpuUsage(); // of all threads, those of the engine too
  return user + system; // µs
}

function percentile(values, share) {
  const ordered = Float64Array.from(values).sort();
  return ordered[Math.min(ordered.length - 1, Math.trunc(ordered.length * share))];
}

function status(field) {
  const line = readFileSync("/proc/self/status", "utf8").split("\n").find((one) => one.startsWith(field));
  return Number(line.split(/\s+/)[1]) * 1024;
}
const currentRss = () => status("VmRSS:");
const peakRss = () => status("VmHWM:");
const resetPeakRss = () => writeFileSync("/proc/self/clear_refs", "5");

function serversLeft() {
  let found = 0;
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)) {
    try {
      const byMark = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").includes(MARK);
      const [state, parent] = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1).split(" ");
      if (byMark || (state === "Z" && Number(parent) === process.pid)) found++;
    } catch {
      // gone meanwhile
    }
  }
  return found;
}

function check(holds, what) {
  if (!holds) throw new Error(what);
}

// --- the client ---------------------------------------------------------------------------------------------------

async function toolsOf(client) {
  return (await client.listTools(undefined, { cacheMode: "bypass" })).tools;
}

async function textOf(client, name, args) {
  const [block] = (await client.callTool({ name, arguments: args })).content;
  check(block.type === "text", "not a text");
  return block.text;
}

const urls = (process.env.BENCH_URLS ?? "").split(" ").filter(Boolean); // of servers that run already

function transport(server, tools) {
  if (urls.length) return new StreamableHTTPClientTransport(new URL(urls[server]));
  const args = ["--mark", MARK, "--tools", String(tools)];
  return new StdioClientTransport({ command: process.env.BENCH_SERVER, args, maxBufferSize: 64 * 1024 * 1024 });
}

async function closeOne(client) {
  await client.transport.terminateSession?.(); // closing it does not say DELETE
  await client.close();
}

async function openOne(tools, server = 0) {
  const client = new Client({ name: "bench", version: "1" });
  await client.connect(transport(server, tools));
  const listed = await toolsOf(client);
  check(listed.length === tools + OWN_TOOLS, `${listed.length} tools`);
  return { client, listed };
}

async function opened(servers = 1) {
  const all = await Promise.all(Array.from({ length: servers }, (_, server) => openOne(0, server)));
  return all.map(({ client }) => client);
}

const closed = (clients) => Promise.all(clients.map(closeOne));

async function hello(client, text = "hello") {
  const answer = await textOf(client, "echo", { text });
  check(answer === text, `the answer to ${text} is ${answer}`);
}

async function big(client, bytes) {
  const text = await textOf(client, "big", { bytes });
  check(text.length === bytes && text.startsWith("The harbour"), "the large text");
  return text;
}

async function warmed() {
  const clients = await opened();
  await hello(clients[0]);
  await closed(clients);
}

async function sequential(client, calls) {
  const took = new Float64Array(calls); // ms
  for (let n = 0; n < calls; n++) {
    const began = clock();
    await hello(client);
    took[n] = clock() - began;
  }
  return took;
}

/** Calls from so many at once, until so many are made or so many seconds have passed; calls per second. */
async function sideBySide(clients, inFlight, { calls = Infinity, seconds = 0 }) {
  let left = calls;
  let done = 0;
  const timer = seconds && setTimeout(() => (left = 0), seconds * 1000);
  const began = clock();
  await Promise.all(
    Array.from({ length: inFlight }, async (_, worker) => {
      const client = clients[worker % clients.length];
      const own = `hello ${worker}`;
      while (left > 0) {
        left--;
        await hello(client, own);
        done++;
      }
    }),
  );
  const took = (clock() - began) / 1000;
  clearTimeout(timer);
  return done / took;
}

// --- the cases ----------------------------------------------------------------------------------------------------

async function rate({ servers = 1, in_flight, seconds, warmup }) {
  const clients = await opened(servers);
  if (warmup) await sideBySide(clients, in_flight, { calls: warmup });
  const began = clock();
  const cpu = cpuClock();
  const perSecond = await sideBySide(clients, in_flight, { seconds });
  const used = (cpuClock() - cpu) / ((perSecond * (clock() - began)) / 1000);
  await closed(clients);
  return { per_s: perSecond, cpu_us: used };
}

const CASES = {
  async start({ servers, repeats }) {
    const [ms, closeMs] = [[], []];
    await warmed();
    for (let n = 0; n < repeats; n++) {
      let began = clock();
      const clients = await opened(servers);
      ms.push(clock() - began);
      began = clock();
      await closed(clients);
      closeMs.push(clock() - began);
    }
    return { ms, close_ms: closeMs };
  },

  async call({ calls, warmup }) {
    const [client] = await opened();
    await sequential(client, warmup);
    const cpu = cpuClock();
    const took = await sequential(client, calls);
    const used = (cpuClock() - cpu) / calls;
    await client.close();
    return { p50_us: percentile(took, 0.5) * 1e3, p99_us: percentile(took, 0.99) * 1e3, cpu_us: used };
  },

  rate,
  spread: rate,

  async large({ bytes, repeats }) {
    const [client] = await opened();
    await hello(client);
    const before = currentRss();
    resetPeakRss();
    const began = clock();
    let text = await textOf(client, "big", { bytes });
    const first = clock() - began;
    const ratio = (peakRss() - before) / bytes;
    check(text.length === bytes && text.startsWith("The harbour"), "the large text");
    text = undefined;
    const took = [];
    for (let n = 0; n < repeats; n++) {
      const began = clock();
      await big(client, bytes);
      took.push(clock() - began);
    }
    await client.close();
    return { ms: percentile(took, 0.5), first_ms: first, rss_ratio: ratio };
  },

  async list({ tools, repeats }) {
    await warmed();
    const before = currentRss();
    resetPeakRss();
    const { client, listed } = await openOne(tools);
    const read = (some) => new Map(some.map(({ name, description }) => [name, description ?? ""]));
    check(read(listed).size === tools + OWN_TOOLS, "names");
    const [peak, after] = [peakRss(), currentRss()];
    listed.length = 0;
    const took = [];
    for (let n = 0; n < repeats; n++) {
      const count = await textOf(client, "touch", {});
      const began = clock();
      const all = read(await toolsOf(client));
      took.push(clock() - began);
      check(all.size === tools + OWN_TOOLS, `${all.size} tools`);
      check(all.get("touch").endsWith(count), "an old list");
    }
    await client.close();
    return { ms: percentile(took, 0.5), rss_mb: (peak - before) / MB, rss_held_mb: (after - before) / MB };
  },

  async many({ servers }) {
    const empty = currentRss();
    await warmed();
    const warm = currentRss();
    let began = clock();
    let cpu = cpuClock();
    const clients = await opened(servers);
    const ready = clock() - began;
    cpu = (cpuClock() - cpu) / 1e3;
    const rss = currentRss();
    for (const client of clients) await hello(client);
    began = clock();
    await closed(clients);
    const end = clock() - began;
    return {
      ready_ms: ready,
      close_ms: end,
      cpu_ms: cpu,
      rss_mb: rss / MB,
      rss_empty_mb: empty / MB,
      more_mb: (rss - warm) / MB,
      left: serversLeft(),
    };
  },

  async growth({ warmup, windows }) {
    const slices = 10;
    const [client] = await opened();
    await sequential(client, warmup);
    const [cpuUs, rssMb] = [[], []];
    let done = 0;
    for (const [first, end] of windows) {
      for (; done < first; done++) await hello(client);
      const calls = Math.trunc((end - first) / slices);
      const cpu = [];
      for (let slice = 0; slice < slices; slice++) {
        const began = cpuClock();
        for (let n = 0; n < calls; n++) await hello(client);
        cpu.push((cpuClock() - began) / calls);
      }
      done = end;
      cpuUs.push(percentile(cpu, 0.5));
      rssMb.push(currentRss() / MB);
    }
    await client.close();
    const [firstCpu, lastCpu] = [cpuUs[0], cpuUs.at(-1)];
    return {
      cpu_us: cpuUs,
      rss_mb: rssMb,
      first_cpu_us: firstCpu,
      last_cpu_us: lastCpu,
      drift: lastCpu / firstCpu,
      rss_growth_mb: rssMb.at(-1) - rssMb[0],
    };
  },

  async lag({ bytes, repeats }) {
    const step = 1;
    const late = [];
    const [client] = await opened();
    await big(client, bytes);
    let over = false;
    const ticking = (async () => {
      while (!over) {
        const asked = clock() + step;
        await sleep(step);
        late.push(clock() - asked);
      }
    })();
    for (let n = 0; n < repeats; n++) await big(client, bytes);
    over = true;
    await ticking;
    await client.close();
    return {
      p50_ms: percentile(late, 0.5),
      p99_ms: percentile(late, 0.99),
      max_ms: percentile(late, 1),
      ticks: late.length,
    };
  },
};

const [name, params] = process.argv.slice(2);
if (!Object.hasOwn(CASES, name)) {
  console.log(JSON.stringify({ unsupported: `no case '${name}'` }));
  process.exit(3);
}
try {
  console.log(JSON.stringify(await CASES[name](JSON.parse(params))));
} catch (error) {
  console.error(String(error));
  process.exit(1); // its servers may still hold the loop
}
