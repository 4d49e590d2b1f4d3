-- Threads for people who write SQL, read with the rights of the login that asks. The list of tenants is an array: a
-- comparison with it can use an index, and it is made once for each statement.
CREATE VIEW compaction_store.audit_threads WITH (security_invoker = true) AS
SELECT
    t.tenant,
    t.thread_id,
    h.last_seq AS messages,
    h.last_number AS records,
    h.last_pos AS entries,
    h.view_tokens,
    t.created_at,
    CASE WHEN h.last_pos > 0 THEN h.last_at END AS last_at,
    h.erased_pos IS NOT NULL AS erased,
    h.erased_pos,
    CASE WHEN h.hidden_seq = h.last_seq THEN true ELSE false END AS hidden,
    (
        SELECT CASE e.kind WHEN 'hold' THEN e.pos END AS pos
        FROM compaction_store.events AS e
        WHERE e.thread_uid = t.thread_uid AND e.pos <= h.last_pos AND e.kind IN ('hold', 'release')
        ORDER BY e.pos DESC
        LIMIT 1
    ) AS held_pos,
    (
        SELECT compaction_store.retained_until(e.body::text) AS until
        FROM compaction_store.events AS e
        WHERE e.thread_uid = t.thread_uid AND e.pos <= h.last_pos AND e.kind = 'retention'
        ORDER BY e.pos DESC
        LIMIT 1
    ) AS retained_until,
    compaction_store.audit_json(t.metadata::text) AS metadata,
    h.head,
    t.thread_uid
FROM compaction_store.threads AS t
JOIN compaction_store.heads AS h ON h.thread_uid = t.thread_uid
WHERE t.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)));
