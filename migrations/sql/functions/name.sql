-- Returns the bytes of the JSON array [tenant, thread_id].
CREATE FUNCTION compaction_store.name(p_tenant text, p_thread_id text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.convert_to(
        '[' || pg_catalog.to_json(p_tenant)::text || ',' || pg_catalog.to_json(p_thread_id)::text || ']', 'UTF8'
    )
$$;
