// A program in TypeScript, with the types of docs/openapi.json: it talks, compacts, and asks what the model saw.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Page = components["schemas"]["ThreadsAnswer"];

const [baseUrl, token] = [process.env.API_URL, process.env.API_TOKEN];
const api = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const path = { thread_id: "ticket/8812 – é" };

// Append, and repeat the same call, as after a lost answer.
const body = { messages: [{ role: "user", content: "Where is order 8812?" }], key: "turn-1" };
const first = await api.POST("/v1/threads/{thread_id}/messages", { params: { path }, body });
const again = await api.POST("/v1/threads/{thread_id}/messages", { params: { path }, body });
assert.equal(first.response.status, 201);
assert.deepEqual(again.data, first.data);

// Read the request for the model, and append its reply with the view that it was written from.
const asked = await api.GET("/v1/threads/{thread_id}/request", { params: { path, query: { format: "openai-chat" } } });
assert.deepEqual(asked.data?.arguments, { messages: body.messages });
const used = { pos: asked.data.pos, head: asked.data.head, format: "openai-chat" as const };
const reply = await api.POST("/v1/threads/{thread_id}/messages", {
  params: { path },
  body: { messages: [{ role: "assistant", content: "It is on its way." }], view: used, expected_seq: 1 },
});
const seq: number | undefined = reply.data?.messages[0]?.seq;
assert.equal(seq, 2);
const seen = await api.GET("/v1/threads/{thread_id}/messages/{seq}/seen", { params: { path: { ...path, seq } } });
assert.equal(seen.data?.evidence, "proved");
assert.equal(seen.data.view.head, asked.data.head);

// Compact, list the records, and undo.
for (let turn = 2; turn <= 12; turn++) {
  const messages = ["user", "assistant"].map((role) => ({ role, content: `Turn ${turn}: ${"more to say. ".repeat(9)}` }));
  const stored = await api.POST("/v1/threads/{thread_id}/messages", { params: { path }, body: { messages } });
  assert.equal(stored.error, undefined);
}
const run = await api.POST("/v1/threads/{thread_id}/compact", { params: { path }, body: { strategy: "sliding-window" } });
const record = run.data?.records[0];
assert.equal(record?.outcome, "applied");
const listed = await api.GET("/v1/compactions", { params: { query: { status: "active", kind: "summary" } } });
assert.deepEqual(listed.data?.items, [record]);
const view = await api.GET("/v1/threads/{thread_id}/view", { params: { path } });
assert.ok(view.data && view.data.elements.length < 24);
const number = record.number;
const revoked = await api.POST("/v1/threads/{thread_id}/compactions/{number}/revoke", {
  params: { path: { ...path, number } },
  body: { reason: "a number was lost" },
});
assert.equal(revoked.data?.kind, "revocation");

// Every page of the messages, a fork, and the proof.
const seqs: number[] = [];
let after: number | undefined;
do {
  const page = await api.GET("/v1/threads/{thread_id}/messages", { params: { path, query: { after, limit: 5 } } });
  seqs.push(...(page.data?.items ?? []).map((message) => message.seq));
  after = page.data?.next == null ? undefined : Number(page.data.next);
} while (after !== undefined);
assert.deepEqual(seqs, Array.from({ length: 24 }, (_, index) => index + 1));
const fork = await api.POST("/v1/threads/{thread_id}/fork", { params: { path }, body: { new_thread_id: "again", at: 2 } });
assert.equal(fork.data?.last_seq, 2);
const threads: Page | undefined = (await api.GET("/v1/threads")).data;
assert.deepEqual(threads?.items.map((thread) => thread.thread_id), ["again", path.thread_id]);
const report = await api.GET("/v1/threads/{thread_id}/verify", { params: { path } });
assert.deepEqual(report.data?.findings, []);

// An error has a type for programs, and a message for people.
const missing = await api.GET("/v1/threads/{thread_id}/view", { params: { path: { thread_id: "nobody" } } });
assert.deepEqual([missing.response.status, missing.error?.type], [404, "ThreadNotFound"]);
const wrong = await api.POST("/v1/threads/{thread_id}/messages", { params: { path }, body: { messages: [{ role: "x" }] } });
assert.deepEqual([wrong.response.status, wrong.error?.type], [400, "InvalidMessage"]);
console.log(`${seqs.length} messages, record ${number} revoked, ${report.data?.entries} entries verified`);
