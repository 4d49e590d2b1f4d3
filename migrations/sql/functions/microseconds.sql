-- The time as it is hashed; NULL where it is infinite, or so late that its microseconds are no bigint, which nothing of
-- ours writes.
CREATE FUNCTION compaction_store.microseconds(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN p_at > '-infinity' AND p_at < '294247-01-01 00:00+00' THEN (EXTRACT(epoch FROM p_at) * 1000000)::bigint END
$$;
