-- Compares the view at p_at with the view at p_beside, or with itself if p_beside is NULL, and returns a page of their
-- elements in order, after a first row about the views. A row is a record or a run of messages, in the first view, in
-- the second or in both. With p_only_changes, elements that are in both are left out. The page has p_limit elements
-- after the first p_skip; its first and last run of messages may be cut. The first row has the tokens of the view if
-- p_beside is NULL, the number of all elements that p_only_changes leaves, and the number of those that are in one view
-- only. Unlike view, this function also works for a hidden thread.
CREATE FUNCTION compaction_store.compare(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_at bigint, p_beside bigint, p_only_changes boolean,
    p_skip bigint, p_limit bigint
)
RETURNS TABLE (
    at_pos bigint, tokens bigint, total bigint, changed bigint, seq bigint, end_seq bigint,
    number bigint, is_left boolean, is_right boolean
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_left record;
    v_right record;
    -- NULL without p_beside.
    v_left_seqs int8multirange;
    v_right_seqs int8multirange;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT * INTO v_left FROM compaction_store.view_parts(p_thread_uid, p_at, p_counted => p_beside IS NULL);
    v_right := v_left;
    IF p_beside IS NOT NULL THEN
        SELECT * INTO v_right FROM compaction_store.view_parts(p_thread_uid, p_beside, p_counted => false);
        SELECT coalesce(range_agg(int8range(g.first, g.last, '[]')), '{}') INTO v_left_seqs
        FROM compaction_store.gaps(v_left.starts, v_left.ends, 1, v_left.last_seq) AS g;
        SELECT coalesce(range_agg(int8range(g.first, g.last, '[]')), '{}') INTO v_right_seqs
        FROM compaction_store.gaps(v_right.starts, v_right.ends, 1, v_right.last_seq) AS g;
    END IF;
    RETURN QUERY
        WITH parts AS (
            SELECT l.first, l.last, l.record, 1::bigint AS size, true AS in_left, true AS in_right
            FROM unnest(v_left.numbers, v_left.starts, v_left.ends) AS l (record, first, last)
            WHERE p_beside IS NULL
            UNION ALL
            SELECT g.first, g.last, NULL, g.last - g.first + 1, true, true
            FROM compaction_store.gaps(v_left.starts, v_left.ends, 1, v_left.last_seq) AS g
            WHERE p_beside IS NULL
            UNION ALL
            SELECT coalesce(l.first, r.first), coalesce(l.last, r.last), record, 1, l.first IS NOT NULL,
                r.first IS NOT NULL
            FROM unnest(v_left.numbers, v_left.starts, v_left.ends) AS l (record, first, last)
            FULL JOIN unnest(v_right.numbers, v_right.starts, v_right.ends) AS r (record, first, last) USING (record)
            WHERE p_beside IS NOT NULL
            UNION ALL
            SELECT lower(m.run), upper(m.run) - 1, NULL, upper(m.run) - lower(m.run), m.in_left, m.in_right
            FROM (
                SELECT unnest(v_left_seqs * v_right_seqs) AS run, true AS in_left, true AS in_right
                UNION ALL SELECT unnest(v_left_seqs - v_right_seqs), true, false
                UNION ALL SELECT unnest(v_right_seqs - v_left_seqs), false, true
            ) AS m
        ),
        placed AS (
            SELECT p.*,
                (
                    sum(p.size) OVER (
                        ORDER BY p.first, p.last DESC, p.record NULLS FIRST ROWS UNBOUNDED PRECEDING
                    ) - p.size
                )::bigint AS before
            FROM parts AS p
            WHERE NOT (p_only_changes AND p.in_left AND p.in_right)
        )
        SELECT v_left.at_pos, v_left.tokens, coalesce(sum(p.size), 0)::bigint,
            coalesce(sum(p.size) FILTER (WHERE NOT (p.in_left AND p.in_right)), 0)::bigint,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean, NULL::boolean
        FROM placed AS p
        UNION ALL
        (
            SELECT NULL, NULL, NULL, NULL,
                CASE WHEN p.record IS NULL THEN p.first + greatest(0, p_skip - p.before) ELSE p.first END,
                CASE WHEN p.record IS NULL THEN least(p.last, p.first + p_skip + p_limit - p.before - 1) ELSE p.last END,
                p.record, p.in_left, p.in_right
            FROM placed AS p
            WHERE p.before < p_skip + p_limit AND p.before + p.size > p_skip
            ORDER BY p.before
        );
END
$$;
