/*
 * A property fuzzer over api/openapi.yaml: for each operation, requests made from its schemas (positive), bent out of shape (negative), sent with
 * the wrong key (auth), the wrong method (method) or odd headers (header). What must hold of every answer: its status is documented and below 500,
 * its body is what the contract says, and what should have been refused was.
 *
 * node fuzz.mjs SPEC.json SETUP.json SECONDS SEED, in the folder where the packages are. SETUP: {base, tokens: {role: token}, other, ids: [own ids],
 * keep: [ids that must live]}. One JSON object on stdout: counts, and failures with their smallest request.
 */
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import http from "node:http";

const require = createRequire(`${process.cwd()}/package.json`);
const fc = require("fast-check");
const Ajv = require("ajv/dist/2020").default;
const formats = require("ajv-formats");

const [spec, setup] = [2, 3].map((i) => JSON.parse(readFileSync(process.argv[i], "utf8")));
const seconds = Number(process.argv[4]);
const seed = Number(process.argv[5]);
const end = Date.now() + seconds * 1000;

const ajv = new Ajv({ strict: false, allErrors: false, validateFormats: true });
(formats.default ?? formats)(ajv);
ajv.addSchema({ $id: "spec", components: spec.components });
const compiled = new Map();
const absolute = (schema) => JSON.parse(JSON.stringify(schema).replaceAll('"#/components', '"spec#/components'));
function errorsOf(schema, value) {
    const key = JSON.stringify(schema);
    if (!compiled.has(key)) compiled.set(key, ajv.compile(absolute(schema)));
    const validate = compiled.get(key);
    return validate(value) ? "" : ajv.errorsText(validate.errors).slice(0, 300);
}
function resolve(node) {
    while (node && node.$ref) node = node.$ref.slice(2).split("/").reduce((at, part) => at[part], spec);
    return node;
}

/* --- ids that the server gave, so that requests reach what lies behind the 404 --------------------------------- */
const pool = new Map();
const keep = new Set(setup.keep);
function learn(text) {
    for (const id of text.match(/\b[a-z]{3}_[0-9a-hjkmnp-tv-z]{26}\b/g) ?? []) {
        if (keep.has(id)) continue;
        const known = pool.get(id.slice(0, 3)) ?? [];
        if (!known.includes(id)) known.push(id);
        pool.set(id.slice(0, 3), known.slice(-40));
    }
}
learn(setup.ids.join(" "));

/* --- values of a schema ------------------------------------------------------------------------------------------ */
const words = fc.oneof(fc.string({ maxLength: 40 }), fc.string({ unit: "binary", maxLength: 20 }), fc.constantFrom("", "../..", "a/b", "' or 1=1 --", "💥", "_default", "\u0000", "%00"));
function idOf(pattern) {
    const prefix = /^\^([a-z]{3})_/.exec(pattern)?.[1];
    if (!prefix) return null;
    const made = fc.stringMatching(new RegExp(pattern));
    const known = pool.get(prefix) ?? [];
    return known.length ? fc.oneof({ weight: 4, arbitrary: fc.constantFrom(...known) }, made) : made;
}
function textOf(schema) {
    if (schema.format === "date-time") return fc.date({ min: new Date("2020-01-01"), max: new Date("2040-01-01"), noInvalidDate: true }).map((d) => d.toISOString().replace("Z", "000Z"));
    if (schema.pattern) return idOf(schema.pattern) ?? fc.stringMatching(new RegExp(schema.pattern, "u"));
    const min = schema.minLength ?? 0;
    return fc.string({ minLength: min, maxLength: Math.min(schema.maxLength ?? 40, min + 60) });
}
function objectOf(schema, depth) {
    const required = new Set(schema.required ?? []);
    const members = {};
    for (const [name, member] of Object.entries(schema.properties ?? {})) {
        if (depth < 5 || required.has(name)) members[name] = valueOf(member, depth + 1);
    }
    const record = fc.record(members, { requiredKeys: [...required].filter((name) => name in members) });
    if (typeof schema.additionalProperties !== "object") return record;
    const key = schema.propertyNames?.pattern ? fc.stringMatching(new RegExp(schema.propertyNames.pattern)) : fc.stringMatching(/^[a-z][a-z0-9_]{0,10}$/);
    return fc.tuple(record, fc.dictionary(key, valueOf(schema.additionalProperties, depth + 1), { maxKeys: 3 })).map(([a, b]) => ({ ...b, ...a }));
}
function valueOf(given, depth = 0) {
    const schema = resolve(given) ?? {};
    if ("const" in schema) return fc.constant(schema.const);
    if (schema.enum) return fc.constantFrom(...schema.enum);
    const variants = schema.oneOf ?? schema.anyOf;
    if (variants && !schema.properties) return fc.oneof(...variants.map((variant) => valueOf(variant, depth + 1)));
    if (variants) return fc.oneof(...variants.map((variant) => objectOf({ ...schema, ...resolve(variant), properties: { ...schema.properties, ...resolve(variant).properties } }, depth)));
    if (schema.allOf) return fc.tuple(...schema.allOf.map((part) => valueOf(part, depth + 1))).map((parts) => Object.assign({}, ...parts));
    const type = Array.isArray(schema.type) ? schema.type : [schema.type];
    const options = type.map((one) => {
        switch (one) {
            case "string": return textOf(schema);
            case "integer": return fc.integer({ min: schema.minimum ?? -1000, max: Math.min(schema.maximum ?? 1e6, Number.MAX_SAFE_INTEGER) });
            case "number": return fc.double({ noNaN: true, noDefaultInfinity: true });
            case "boolean": return fc.boolean();
            case "null": return fc.constant(null);
            case "array": return fc.array(valueOf(schema.items ?? {}, depth + 1), { minLength: schema.minItems ?? 0, maxLength: Math.min(schema.maxItems ?? 4, (schema.minItems ?? 0) + 4) });
            case "object": return objectOf(schema, depth);
            default: return fc.oneof(fc.integer(), words, fc.boolean());
        }
    });
    return fc.oneof(...options);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */
function operationsOf() {
    const found = [];
    for (const [path, item] of Object.entries(spec.paths)) {
        for (const method of ["get", "put", "post", "patch", "delete"]) {
            const operation = item[method];
            if (!operation || !(operation["x-listeners"] ?? ["api"]).includes("api")) continue;
            const parameters = [...(item.parameters ?? []), ...(operation.parameters ?? [])].map(resolve);
            found.push({ path, method: method.toUpperCase(), operation, parameters, item });
        }
    }
    return found;
}
function baseOf(op) {
    const at = {};
    for (const parameter of op.parameters) {
        if (parameter.in === "header") continue;
        let value = valueOf(parameter.schema);
        if (parameter.in === "query" && parameter.name === "poll") value = fc.constant("1");
        if (parameter.in === "query" && parameter.name === "wait_seconds") value = fc.constantFrom(0, 1);
        at[`${parameter.in} ${parameter.name}`] = parameter.required || parameter.name === "poll" ? value.map(String) : fc.option(value.map(String), { nil: undefined, freq: 2 });
    }
    const content = resolve(op.operation.requestBody)?.content ?? {};
    const type = Object.keys(content).find((name) => name.endsWith("json"));
    const body = type ? valueOf(content[type].schema) : fc.constant(undefined);
    return fc.record({ at: fc.record(at), body, role: fc.constantFrom(...(op.operation["x-roles"]?.length ? op.operation["x-roles"].filter((role) => role in setup.tokens) : ["none"])) })
        .map((made) => ({ ...made, type, schema: type && content[type].schema, headers: {} }));
}
const bend = fc.oneof(
    fc.record({ how: fc.constant("drop"), which: fc.nat(9) }),
    fc.record({ how: fc.constant("retype"), which: fc.nat(9), value: fc.oneof(fc.constant(null), fc.integer(), words, fc.constant([]), fc.constant({}), fc.constant(1.5), fc.constant(1e300)) }),
    fc.record({ how: fc.constant("add"), name: fc.string({ minLength: 1, maxLength: 12 }), value: words }),
    fc.record({ how: fc.constant("raw"), value: fc.constantFrom("", "{", "[]", "null", "{\"a\":1,\"a\":2}", "\"x\"", "{}{}", "\ufeff{}", "[".repeat(100)) }),
    fc.record({ how: fc.constant("query"), name: fc.constantFrom("nosuch", "limit", "cursor", "order", "dry_run", "token", "state"), value: words }));
function bent(request, how) {
    const made = structuredClone(request);
    if (how.how === "query") made.at[`query ${how.name}`] = how.value;
    else if (how.how === "raw") made.raw = how.value;
    else if (made.body && typeof made.body === "object") {
        const names = Object.keys(made.body);
        const name = names[how.which % Math.max(1, names.length)];
        if (how.how === "drop" && names.length) delete made.body[name];
        if (how.how === "retype" && names.length) made.body[name] = how.value;
        if (how.how === "add") made.body[how.name] = how.value;
    }
    return made;
}
const headerSets = fc.dictionary(fc.constantFrom("Accept", "Prefer", "If-Match", "If-None-Match", "Idempotency-Key", "traceparent", "tracestate", "X-Request-Id", "Last-Event-ID", "Accept-Encoding", "Range", "Origin", "Content-Encoding", "Expect", "X-Forwarded-For", "Forwarded"),
    fc.oneof(fc.stringMatching(/^[ -~]{0,60}$/), fc.constantFrom("*/*", "text/html", "application/json;q=0", "wait=0", "wait=abc", "*", '"1"', '"1.0000000000000000"', "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "gzip;q=0", "bytes=0-1", "100-continue", "x".repeat(300))), { maxKeys: 4 });
const modes = { positive: 5, negative: 3, auth: 1, method: 1, header: 2 };
function caseOf(op) {
    const base = baseOf(op);
    return fc.oneof(...Object.entries(modes).map(([mode, weight]) => ({
        weight,
        arbitrary: mode === "negative" ? fc.tuple(base, bend).map(([request, how]) => ({ mode, ...bent(request, how) }))
            : mode === "header" ? fc.tuple(base, headerSets).map(([request, headers]) => ({ mode, ...request, headers }))
            : mode === "auth" ? fc.tuple(base, fc.constantFrom("", "kvrun_live_nonsense", "x".repeat(200), "other")).map(([request, token]) => ({ mode, ...request, token }))
            : mode === "method" ? fc.tuple(base, fc.constantFrom("GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "HEAD", "BREW")).map(([request, method]) => ({ mode, ...request, method }))
            : base.map((request) => ({ mode, ...request })),
    })));
}

/* --- sending ------------------------------------------------------------------------------------------------------ */
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
function send(op, request) {
    let path = op.path;
    const query = [];
    for (const [where, value] of Object.entries(request.at)) {
        if (value === undefined) continue;
        const [place, name] = where.split(" ");
        if (place === "path") path = path.replace(`{${name}}`, encodeURI(value).replace(/[^A-Za-z0-9_:.-]/g, "-") || "-");
        else query.push(`${encodeURIComponent(name)}=${encodeURIComponent(String(value).toWellFormed?.() ?? value)}`);
    }
    const target = path + (query.length ? `?${query.join("&")}` : "");
    const headers = { ...request.headers };
    const token = request.token === "other" ? setup.other : request.token ?? setup.tokens[request.role];
    if (token) headers.Authorization = `Bearer ${token}`;
    const method = request.method ?? op.method;
    const text = request.raw ?? (request.body === undefined ? undefined : JSON.stringify(request.body));
    if (text !== undefined) {
        headers["Content-Type"] = request.type ?? "application/json";
        headers["Content-Length"] = Buffer.byteLength(text); // node leaves it out where a method usually has no body, and the next request begins with it
    }
    return new Promise((done, fail) => {
        const call = http.request(setup.base + target, { method, headers, agent, timeout: 30000 }, (response) => {
            const parts = [];
            response.on("data", (part) => parts.push(part));
            response.on("end", () => done({ status: response.statusCode, headers: response.headers, body: Buffer.concat(parts).toString(), method, target }));
            response.on("error", fail);
        });
        call.on("timeout", () => call.destroy(new Error("no answer in 30 s")));
        call.on("error", fail);
        call.end(text);
    });
}

/* --- what must hold ---------------------------------------------------------------------------------------------- */
const counts = { requests: 0, operations: 0, statuses: {}, modes: {}, succeeded: {} };
function check(op, request, answer) {
    const { status } = answer;
    const where = `${answer.method} ${answer.target} -> ${status} ${answer.body.slice(0, 200)}`;
    // Engines and open operations are bounded; places come free as leases run out and operations end.
    const bounded = ["/v1/engines", "/v1/audit:verify", "/v1/tiers/dram:drain", "/v1/tiers/nvme:drain", "/v1/erasures/{erasure_id}:prove"];
    if (status === 503 && bounded.includes(op.path) && JSON.parse(answer.body).code === "busy") return;
    if (status >= 500 && !(status === 501 && (request.mode === "method" || request.mode === "header"))) throw new Error(`a server error: ${where}`);
    if (request.mode === "method" && answer.method !== op.method) {
        if (status === 405 && !answer.headers.allow) throw new Error(`405 without Allow: ${where}`);
        return;
    }
    const operation = op.item[answer.method.toLowerCase()] ?? op.operation;
    const documented = resolve(operation.responses[String(status)] ?? (status >= 400 ? operation.responses.default : undefined));
    if (!documented) throw new Error(`not documented: ${where}`);
    const kind = (answer.headers["content-type"] ?? "").split(";")[0];
    const content = documented.content?.[kind] ?? (status >= 400 ? resolve(operation.responses.default)?.content?.[kind] : undefined);
    if (answer.body !== "" && !content) throw new Error(`${kind} is not documented: ${where}`);
    if (content && kind.endsWith("json")) {
        const errors = errorsOf(content.schema, JSON.parse(answer.body));
        if (errors) throw new Error(`off the contract, ${errors}: ${where}`);
    }
    if (status < 300 && request.mode === "negative" && request.schema && request.raw === undefined && errorsOf(request.schema, request.body)) throw new Error(`accepted against its schema: ${JSON.stringify(request.body)} ${where}`);
    if (status < 300 && request.mode === "negative" && request.raw !== undefined && request.raw !== "" && request.schema) throw new Error(`accepted: ${request.raw} ${where}`);
    const open = (op.operation["x-roles"] ?? []).length === 0;
    if (request.mode === "auth" && !open && request.token !== "other" && status !== 401 && status !== 400 && status !== 405 && status !== 414 && status !== 429) throw new Error(`without a key: ${where}`);
}

const failures = [];
async function run(op, round) {
    const name = `${op.method} ${op.path}`;
    counts.succeeded[name] ??= 0;
    const property = fc.asyncProperty(caseOf(op), async (request) => {
        const answer = await send(op, request);
        counts.requests++;
        counts.statuses[answer.status] = (counts.statuses[answer.status] ?? 0) + 1;
        counts.modes[request.mode] = (counts.modes[request.mode] ?? 0) + 1;
        check(op, request, answer);
        if (answer.status < 300 && answer.method === op.method) counts.succeeded[name] = (counts.succeeded[name] ?? 0) + 1;
        learn(answer.body);
    });
    const left = end - Date.now();
    if (left <= 0) return;
    const result = await fc.check(property, { seed: seed + round, numRuns: 25, interruptAfterTimeLimit: Math.min(left, 20000), markInterruptAsFailure: false, maxSkipsPerRun: 100 });
    if (result.failed && !(result.interrupted && result.counterexample === null)) { // time may be up before the first of a property's requests
        const message = String(result.errorInstance?.message ?? result.error).slice(0, 700);
        failures.push({ operation: name, seed: result.seed, path: result.counterexamplePath, message, request: JSON.stringify(result.counterexample).slice(0, 600) });
    }
}

const operations = operationsOf().filter((op) => !setup.skip.includes(`${op.method} ${op.path}`));
counts.operations = operations.length;
for (let round = 0; Date.now() < end && failures.length < 20; round++) {
    const failed = new Set(failures.map((failure) => failure.operation));
    for (const op of operations) if (!failed.has(`${op.method} ${op.path}`)) await run(op, round);
    if (failed.size === operations.length) break;
}
process.stdout.write(JSON.stringify({ seed, ...counts, failures }, null, 1) + "\n");
process.exit(failures.length ? 1 : 0);
