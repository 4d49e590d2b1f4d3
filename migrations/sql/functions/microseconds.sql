-- Returns a time in microseconds, as it is hashed, or NULL if it is infinite or out of range. No function of this
-- schema writes such a time.
CREATE FUNCTION compaction_store.microseconds(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN p_at > '-infinity' AND p_at < '294247-01-01 00:00+00' THEN (EXTRACT(epoch FROM p_at) * 1000000)::bigint END
$$;
