-- Returns the runs of seqs from p_first to p_last that are outside all the given spans, which are disjoint and in
-- order.
CREATE FUNCTION compaction_store.gaps(p_starts bigint[], p_ends bigint[], p_first bigint, p_last bigint)
RETURNS TABLE (first bigint, last bigint)
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT g.low + 1, g.high - 1
    FROM unnest(array_prepend(p_first - 1, p_ends), array_append(p_starts, p_last + 1)) AS g (low, high)
    WHERE g.high - g.low > 1
$$;
