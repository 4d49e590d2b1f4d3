-- Events for people who write SQL. Rows beyond the head are left out. Shows the same tenants as audit_threads.
CREATE VIEW compaction_store.audit_events WITH (security_invoker = true) AS
SELECT
    t.tenant,
    t.thread_id,
    e.pos,
    e.kind,
    e.critical,
    e.actor,
    e.login,
    e.created_at,
    b.body ->> 'reason' AS reason,
    b.body -> 'authority' AS authority,
    b.body -> 'seqs' AS seqs,
    b.body -> 'records' AS records,
    CASE e.kind WHEN 'retention' THEN compaction_store.retained_until(e.body::text) END AS retained_until,
    b.body -> 'overrides' AS overrides,
    b.body -> 'shortens' AS shortens,
    b.body,
    e.body AS stored_body,
    t.thread_uid
FROM compaction_store.threads AS t
-- OFFSET 0 keeps the planner from reading the heads and rows of all threads before it looks up the name.
CROSS JOIN LATERAL (
    SELECT d.last_pos FROM compaction_store.heads AS d WHERE d.thread_uid = t.thread_uid OFFSET 0
) AS h
JOIN compaction_store.events AS e ON e.thread_uid = t.thread_uid AND e.tenant = t.tenant AND e.pos <= h.last_pos
-- OFFSET 0 keeps the planner from parsing a text once for each column.
CROSS JOIN LATERAL (SELECT compaction_store.audit_json(e.body::text) AS body OFFSET 0) AS b
WHERE t.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)));
