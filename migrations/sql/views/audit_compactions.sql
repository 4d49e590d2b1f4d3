-- Compaction records for people who write SQL, each with its status. Rows beyond the head are left out. Shows the same
-- tenants as audit_threads. Each record's tenant is compared too, so that a query by time can use
-- compactions_audit_idx. The status and superseded_by are expressions, not joins, because Postgres computes expensive
-- expressions after a LIMIT.
CREATE VIEW compaction_store.audit_compactions WITH (security_invoker = true) AS
SELECT
    t.tenant,
    t.thread_id,
    c.number,
    CASE
        WHEN c.outcome <> 'applied' OR c.kind = 'revocation' THEN c.outcome
        WHEN c.redacted_pos IS NOT NULL THEN 'redacted'
        WHEN h.unknown_pos IS NOT NULL THEN 'unknown'
        WHEN (
            SELECT min(u.number) AS number
            FROM compaction_store.compactions AS u
            WHERE u.thread_uid = c.thread_uid AND u.revokes = c.number AND u.outcome = 'applied'
                AND u.number <= h.last_number
        ) IS NOT NULL THEN 'revoked'
        WHEN compaction_store.superseded_by(
            c.thread_uid, c.number, c.start_seq, c.end_seq, c.span_node, h.last_seq, h.last_number
        ) IS NOT NULL THEN 'superseded'
        ELSE 'active'
    END AS status,
    CASE WHEN c.outcome = 'applied' AND c.revokes IS NULL AND h.unknown_pos IS NULL AND (
            SELECT min(u.number) AS number
            FROM compaction_store.compactions AS u
            WHERE u.thread_uid = c.thread_uid AND u.revokes = c.number AND u.outcome = 'applied'
                AND u.number <= h.last_number
        ) IS NULL THEN
        compaction_store.superseded_by(
            c.thread_uid, c.number, c.start_seq, c.end_seq, c.span_node, h.last_seq, h.last_number
        )
    END AS superseded_by,
    (
        SELECT min(u.number) AS number
        FROM compaction_store.compactions AS u
        WHERE u.thread_uid = c.thread_uid AND u.revokes = c.number AND u.outcome = 'applied'
            AND u.number <= h.last_number
    ) AS revoked_by,
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
-- OFFSET 0 keeps the planner from reading the heads and rows of all threads before it looks up the name. The conditions
-- on entries of unknown kinds must be the same as in refuse_unknown.
CROSS JOIN LATERAL (
    SELECT d.last_number, d.last_seq, LEAST(
        (
            SELECT min(k.pos) AS pos FROM compaction_store.compactions AS k
            WHERE k.thread_uid = d.thread_uid AND k.number <= d.last_number AND k.outcome = 'applied'
                AND k.kind <> ALL (ARRAY[
                    'summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption'
                ])
        ),
        (
            SELECT min(e.pos) AS pos FROM compaction_store.events AS e
            WHERE e.thread_uid = d.thread_uid AND e.pos <= d.last_pos AND e.critical AND e.kind <> 'redaction'
        )
    ) AS unknown_pos
    FROM compaction_store.heads AS d WHERE d.thread_uid = t.thread_uid OFFSET 0
) AS h
JOIN compaction_store.compactions AS c
    ON c.thread_uid = t.thread_uid AND c.tenant = t.tenant AND c.number <= h.last_number
-- OFFSET 0 keeps the planner from repeating the work for each column.
CROSS JOIN LATERAL (SELECT compaction_store.audit_json(c.body::text) AS body OFFSET 0) AS b
WHERE t.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)))
    AND c.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)));
