CREATE FUNCTION compaction_store.genesis(p_tenant text, p_thread_id text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.sha256(
        E'\\x02'::bytea || pg_catalog.convert_to('compaction-store/v1', 'UTF8') || E'\\x00'::bytea
        || compaction_store.name(p_tenant, p_thread_id)
    )
$$;
