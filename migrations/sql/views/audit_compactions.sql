-- Compaction records for people who write SQL, each with its status. Rows beyond the head are left out. The tenants are
-- chosen as in audit_threads. Each record's tenant is compared too, so that a query by time can use
-- compactions_audit_idx.
CREATE VIEW compaction_store.audit_compactions WITH (security_invoker = true) AS
SELECT
    t.tenant,
    t.thread_id,
    c.number,
    CASE
        WHEN c.outcome <> 'applied' OR c.kind = 'revocation' THEN c.outcome
        WHEN c.redacted_pos IS NOT NULL THEN 'redacted'
        WHEN h.unknown_pos IS NOT NULL THEN 'unknown'
        WHEN s.revoked_by IS NOT NULL THEN 'revoked'
        WHEN s.superseded_by IS NOT NULL THEN 'superseded'
        ELSE 'active'
    END AS status,
    CASE WHEN h.unknown_pos IS NULL THEN s.superseded_by END AS superseded_by,
    s.revoked_by,
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
CROSS JOIN LATERAL (
    SELECT
        (
            SELECT min(u.number) AS number
            FROM compaction_store.compactions AS u
            WHERE u.thread_uid = c.thread_uid AND u.revokes = c.number AND u.outcome = 'applied'
                AND u.number <= h.last_number
        ) AS revoked_by,
        (
            -- Spans in force are nested or disjoint, and of two nested spans the outer one belongs to the later record.
            -- The least number therefore belongs to the innermost span around this one. compactions_span_start_idx and
            -- compactions_span_end_idx find these spans: at each node, the first row is the innermost span. A span
            -- whose node is after this span also ends after it. "+ 0" keeps the planner from using other indexes.
            SELECT min(CASE
                WHEN n.node > c.end_seq THEN (
                    SELECT o.number
                    FROM compaction_store.compactions AS o
                    WHERE o.thread_uid = c.thread_uid AND o.span_node = n.node AND o.outcome = 'applied'
                        AND o.revokes IS NULL AND o.redacted_pos IS NULL
                        AND o.start_seq <= c.start_seq
                        AND o.number + 0 > c.number AND o.number + 0 <= h.last_number
                        AND (
                            SELECT u.number
                            FROM compaction_store.compactions AS u
                            WHERE u.thread_uid = o.thread_uid AND u.revokes = o.number AND u.outcome = 'applied'
                                AND u.number <= h.last_number
                            LIMIT 1
                        ) IS NULL
                    ORDER BY o.start_seq DESC, o.number
                    LIMIT 1
                )
                ELSE (
                    SELECT o.number
                    FROM compaction_store.compactions AS o
                    WHERE o.thread_uid = c.thread_uid AND o.span_node = n.node AND o.outcome = 'applied'
                        AND o.revokes IS NULL AND o.redacted_pos IS NULL
                        AND o.start_seq + 0 <= c.start_seq
                        AND ROW(o.end_seq, o.number) > ROW(c.end_seq, c.number)
                        AND o.number + 0 > c.number AND o.number + 0 <= h.last_number
                        AND (
                            SELECT u.number
                            FROM compaction_store.compactions AS u
                            WHERE u.thread_uid = o.thread_uid AND u.revokes = o.number AND u.outcome = 'applied'
                                AND u.number <= h.last_number
                            LIMIT 1
                        ) IS NULL
                    ORDER BY o.end_seq, o.number
                    LIMIT 1
                )
            END) AS min
            FROM (
                SELECT (c.span_node >> l.zeros + 1 << l.zeros + 1) | (1::bigint << l.zeros) AS node
                FROM pg_catalog.generate_series(
                    64 - strpos((c.span_node & - c.span_node)::bit(64)::text, '1'),
                    64 - strpos(h.last_seq::bit(64)::text, '1')
                ) AS l (zeros)
                OFFSET 0
            ) AS n
            WHERE c.outcome = 'applied'
        ) AS superseded_by
    OFFSET 0
) AS s
WHERE t.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)))
    AND c.tenant = ANY (ARRAY(SELECT a.tenant FROM compaction_store.audit_tenants() AS a (tenant)));
