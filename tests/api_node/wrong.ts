// Each of these lines must be an error of types: the types are those of the API and not `any`.
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

const api = createClient<paths>({ baseUrl: "" });
const path = { thread_id: "t" };
// @ts-expect-error the body needs messages
await api.POST("/v1/threads/{thread_id}/messages", { params: { path }, body: { key: "k" } });
// @ts-expect-error no such filter
await api.GET("/v1/compactions", { params: { query: { nobody: 1 } } });
// @ts-expect-error no such route
await api.GET("/v1/nowhere");
// @ts-expect-error a seq is a number
await api.GET("/v1/threads/{thread_id}/messages/{seq}/seen", { params: { path: { ...path, seq: "2" } } });
// @ts-expect-error the answer may be an error
(await api.GET("/v1/threads/{thread_id}", { params: { path } })).data.head;
