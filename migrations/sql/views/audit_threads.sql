-- Threads for people who write SQL, read with the rights of the querying login. Shows the tenants that audit_tenants
-- returns. Their list is an array, because a comparison with an array can use an index, and because the array is
-- computed only once for each statement. The log of a tenant is left out; audit_events has its events.
CREATE VIEW compaction_store.audit_threads WITH (security_invoker = true) AS
SELECT
    t.tenant,
    t.thread_id,
    h.last_seq AS messages,
    h.last_number AS records,
    h.last_pos AS entries,
    CASE WHEN h.unknown_pos IS NULL THEN h.view_tokens END AS view_tokens,
    t.created_at,
    CASE WHEN h.last_pos > 0 THEN h.last_at END AS last_at,
    CASE WHEN h.last_seq > 0 THEN h.active_at END AS last_message_at,
    h.subject,
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
    (
        SELECT compaction_store.is_locked(e.body::text) AS locked
        FROM compaction_store.events AS e
        WHERE e.thread_uid = t.thread_uid AND e.pos <= h.last_pos AND e.kind = 'retention'
        ORDER BY e.pos DESC
        LIMIT 1
    ) AS locked,
    compaction_store.audit_json(t.metadata::text) AS metadata,
    h.unknown_pos,
    h.head,
    t.thread_uid
FROM compaction_store.threads AS t
JOIN (
    -- These conditions must be the same as in refuse_unknown.
    SELECT d.thread_uid, d.last_seq, d.last_number, d.last_pos, d.view_tokens, d.erased_pos, d.hidden_seq, d.last_at,
        d.active_at, d.subject, d.head, d.is_log, LEAST(
        (
            SELECT min(c.pos) AS pos FROM compaction_store.compactions AS c
            WHERE c.thread_uid = d.thread_uid AND c.number <= d.last_number AND c.outcome = 'applied'
                AND c.kind <> ALL (ARRAY[
                    'summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption'
                ])
        ),
        (
            SELECT min(e.pos) AS pos FROM compaction_store.events AS e
            WHERE e.thread_uid = d.thread_uid AND e.pos <= d.last_pos AND e.critical AND e.kind <> 'redaction'
        )
    ) AS unknown_pos
    FROM compaction_store.heads AS d
) AS h ON h.thread_uid = t.thread_uid
WHERE NOT h.is_log AND t.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)));
