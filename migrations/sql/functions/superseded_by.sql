-- Returns the number of the earliest record in force, made after the given record, whose span contains the given span;
-- or NULL. p_last_seq and p_last_number are the head's. Spans in force are nested or disjoint, and of two nested spans
-- the outer one belongs to the later record. The least number therefore belongs to the innermost span around this one.
-- compactions_span_start_idx and compactions_span_end_idx are the interval tree that tables/compactions.sql describes.
-- At each node of the tree, the first row is the innermost span. A span whose node is after this span also ends after
-- it. "+ 0" keeps the planner from using other indexes. The client's record queries contain the same query, because
-- there, calling this function would take about twice as long. The audit views call it, because they need its result in
-- two columns.
CREATE FUNCTION compaction_store.superseded_by(
    p_thread_uid uuid, p_number bigint, p_start_seq bigint, p_end_seq bigint, p_span_node bigint, p_last_seq bigint,
    p_last_number bigint
) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
-- Planning takes ten times as long as running, and one plan fits all values.
SET plan_cache_mode = force_generic_plan
AS $$
    SELECT min(CASE
        WHEN n.node > p_end_seq THEN (
            SELECT o.number
            FROM compaction_store.compactions AS o
            WHERE o.thread_uid = p_thread_uid AND o.span_node = n.node AND o.outcome = 'applied'
                AND o.revokes IS NULL AND o.redacted_pos IS NULL
                AND o.start_seq <= p_start_seq
                AND o.number + 0 > p_number AND o.number + 0 <= p_last_number
                AND (
                    SELECT u.number
                    FROM compaction_store.compactions AS u
                    WHERE u.thread_uid = o.thread_uid AND u.revokes = o.number AND u.outcome = 'applied'
                        AND u.number <= p_last_number
                    LIMIT 1
                ) IS NULL
            ORDER BY o.start_seq DESC, o.number
            LIMIT 1
        )
        ELSE (
            SELECT o.number
            FROM compaction_store.compactions AS o
            WHERE o.thread_uid = p_thread_uid AND o.span_node = n.node AND o.outcome = 'applied'
                AND o.revokes IS NULL AND o.redacted_pos IS NULL
                AND o.start_seq + 0 <= p_start_seq
                AND ROW(o.end_seq, o.number) > ROW(p_end_seq, p_number)
                AND o.number + 0 > p_number AND o.number + 0 <= p_last_number
                AND (
                    SELECT u.number
                    FROM compaction_store.compactions AS u
                    WHERE u.thread_uid = o.thread_uid AND u.revokes = o.number AND u.outcome = 'applied'
                        AND u.number <= p_last_number
                    LIMIT 1
                ) IS NULL
            ORDER BY o.end_seq, o.number
            LIMIT 1
        )
    END) AS min
    FROM (
        SELECT (p_span_node >> l.zeros + 1 << l.zeros + 1) | (1::bigint << l.zeros) AS node
        FROM generate_series(
            64 - strpos((p_span_node & - p_span_node)::bit(64)::text, '1'),
            64 - strpos(p_last_seq::bit(64)::text, '1')
        ) AS l (zeros)
        OFFSET 0
    ) AS n
$$;
