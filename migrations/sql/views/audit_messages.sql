-- Messages for people who write SQL. Rows beyond the head are left out. Shows the same tenants as audit_threads.
CREATE VIEW compaction_store.audit_messages WITH (security_invoker = true) AS
SELECT
    t.tenant,
    t.thread_id,
    m.seq,
    m.role,
    b.payload ->> 'content' AS content,
    m.tokens,
    m.actor,
    m.login,
    m.created_at,
    m.redacted_pos IS NOT NULL AS redacted,
    m.redacted_pos,
    b.payload,
    b.meta,
    b.receipt,
    m.counter,
    m.key,
    m.pos,
    m.payload AS stored_payload,
    t.thread_uid
FROM compaction_store.threads AS t
-- OFFSET 0 keeps the planner from reading the heads and rows of all threads before it looks up the name.
CROSS JOIN LATERAL (
    SELECT d.last_seq FROM compaction_store.heads AS d WHERE d.thread_uid = t.thread_uid OFFSET 0
) AS h
JOIN compaction_store.messages AS m ON m.thread_uid = t.thread_uid AND m.tenant = t.tenant AND m.seq <= h.last_seq
CROSS JOIN LATERAL (
    -- OFFSET 0 keeps the planner from parsing a text once for each column.
    SELECT
        compaction_store.audit_json(m.payload::text) AS payload,
        compaction_store.audit_json(m.meta::text) AS meta,
        compaction_store.audit_json(m.receipt) AS receipt
    OFFSET 0
) AS b
WHERE t.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)));
