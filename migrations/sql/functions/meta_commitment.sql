CREATE FUNCTION compaction_store.meta_commitment(p_salt bytea, p_meta text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.sha256(E'\\x04'::bytea || p_salt || pg_catalog.convert_to(p_meta, 'UTF8'))
$$;
