-- Computes the hash before a thread's first entry. It binds the chain to the thread_uid, the name and the tenant.
CREATE FUNCTION compaction_store.genesis(p_thread_uid uuid, p_tenant text, p_commitment bytea) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.sha256(
        E'\\x02'::bytea || pg_catalog.convert_to('compaction-store/v1', 'UTF8') || E'\\x00'::bytea
        || pg_catalog.uuid_send(p_thread_uid) || p_commitment || pg_catalog.convert_to(p_tenant, 'UTF8')
    )
$$;
