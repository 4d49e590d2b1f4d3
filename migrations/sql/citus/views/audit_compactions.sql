-- The view of views/audit_compactions.sql with joins, because Citus does not support its correlated subqueries. On a
-- single server, the joins would read the logs of all threads to find the records of one. So both forms are kept.
CREATE OR REPLACE VIEW compaction_store.audit_compactions WITH (security_invoker = true) AS
SELECT
    t.tenant,
    t.thread_id,
    c.number,
    CASE
        WHEN c.outcome <> 'applied' OR c.kind = 'revocation' THEN c.outcome
        WHEN c.redacted_pos IS NOT NULL THEN 'redacted'
        WHEN k.unknown_pos IS NOT NULL THEN 'unknown'
        WHEN r.revoked_by IS NOT NULL THEN 'revoked'
        WHEN s.superseded_by IS NOT NULL THEN 'superseded'
        ELSE 'active'
    END AS status,
    CASE WHEN k.unknown_pos IS NULL AND r.revoked_by IS NULL AND c.revokes IS NULL THEN s.superseded_by
    END AS superseded_by,
    r.revoked_by,
    c.kind,
    c.outcome,
    c.start_seq,
    c.end_seq,
    b.body ->> 'summary_text' AS summary_text,
    b.body ->> 'reason' AS reason,
    b.body -> 'error' ->> 'type' AS error_type,
    b.body -> 'error' ->> 'text' AS error_text,
    c.tokens_before,
    c.tokens_after,
    c.actor,
    c.login,
    b.body -> 'authority' AS authority,
    c.model,
    b.body ->> 'summarizer' AS summarizer,
    b.body -> 'settings' AS settings,
    b.body ->> 'prompt' AS prompt,
    b.body -> 'usage' AS usage,
    CASE pg_catalog.jsonb_typeof(b.body -> 'duration')
        WHEN 'number' THEN (b.body ->> 'duration')::numeric
    END AS duration,
    b.body -> 'checks' AS checks,
    c.callback,
    c.trigger,
    c.counter,
    c.source_count,
    c.inputs,
    c.revokes,
    c.run_id,
    c.created_at,
    c.pos,
    c.redacted_pos IS NOT NULL AS redacted,
    c.redacted_pos,
    b.body,
    c.body AS stored_body,
    t.thread_uid
FROM compaction_store.threads AS t
-- OFFSET 0 keeps the planner from reading the heads and rows of all threads before it looks up the name.
CROSS JOIN LATERAL (
    SELECT d.last_number FROM compaction_store.heads AS d WHERE d.thread_uid = t.thread_uid OFFSET 0
) AS h
JOIN compaction_store.compactions AS c
    ON c.thread_uid = t.thread_uid AND c.tenant = t.tenant AND c.number <= h.last_number
-- OFFSET 0 keeps the planner from repeating the work for each column.
CROSS JOIN LATERAL (SELECT compaction_store.audit_json(c.body::text) AS body OFFSET 0) AS b
LEFT JOIN (
    SELECT u.thread_uid, u.revokes, min(u.number) AS revoked_by
    FROM compaction_store.compactions AS u
    JOIN compaction_store.heads AS d ON d.thread_uid = u.thread_uid AND u.number <= d.last_number
    WHERE u.outcome = 'applied' AND u.revokes IS NOT NULL
    GROUP BY u.thread_uid, u.revokes
) AS r ON r.thread_uid = c.thread_uid AND r.revokes = c.number
LEFT JOIN (
    SELECT DISTINCT ON (i.thread_uid, i.number) i.thread_uid, i.number, o.number AS superseded_by
    FROM compaction_store.compactions AS i
    JOIN compaction_store.heads AS d ON d.thread_uid = i.thread_uid
    JOIN compaction_store.compactions AS o
        ON o.thread_uid = i.thread_uid AND o.start_seq <= i.start_seq AND o.end_seq >= i.end_seq
        AND o.number > i.number AND o.number <= d.last_number
    LEFT JOIN compaction_store.compactions AS u
        ON u.thread_uid = o.thread_uid AND u.revokes = o.number AND u.outcome = 'applied' AND u.number <= d.last_number
    WHERE i.outcome = 'applied' AND o.outcome = 'applied' AND o.revokes IS NULL AND o.redacted_pos IS NULL
        AND u.number IS NULL
    ORDER BY i.thread_uid, i.number, o.start_seq DESC, o.end_seq, o.number
) AS s ON s.thread_uid = c.thread_uid AND s.number = c.number
LEFT JOIN (
    SELECT o.thread_uid, min(o.pos) AS unknown_pos
    FROM (
        SELECT i.thread_uid, i.pos
        FROM compaction_store.compactions AS i
        JOIN compaction_store.heads AS d ON d.thread_uid = i.thread_uid AND i.number <= d.last_number
        WHERE i.outcome = 'applied'
            AND i.kind <> ALL (ARRAY['summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption'])
        UNION ALL
        SELECT e.thread_uid, e.pos
        FROM compaction_store.events AS e
        JOIN compaction_store.heads AS d ON d.thread_uid = e.thread_uid AND e.pos <= d.last_pos
        WHERE e.critical AND e.kind <> 'redaction'
    ) AS o
    GROUP BY o.thread_uid
) AS k ON k.thread_uid = t.thread_uid
WHERE t.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)))
    AND c.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)));
