CREATE FUNCTION compaction_store.commitment(p_salt bytea, p_body text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.sha256(E'\\x00'::bytea || p_salt || pg_catalog.convert_to(p_body, 'UTF8'))
$$;
