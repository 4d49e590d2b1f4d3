-- The time as it is hashed; NULL where it is infinite, which nothing of ours writes.
CREATE FUNCTION compaction_store.microseconds(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN pg_catalog.isfinite(p_at) THEN (EXTRACT(epoch FROM p_at) * 1000000)::bigint END
$$;
