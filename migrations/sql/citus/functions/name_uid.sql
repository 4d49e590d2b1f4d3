-- Returns the name_uid of a name: the first 16 bytes of a hash of the tenant and the name. This function exists only on
-- a cluster, whose table of names is distributed by name_uid.
CREATE OR REPLACE FUNCTION compaction_store.name_uid(p_tenant text, p_thread_id text) RETURNS uuid
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.encode(pg_catalog.substring(pg_catalog.sha256(
        pg_catalog.int4send(pg_catalog.octet_length(pg_catalog.convert_to(p_tenant, 'UTF8')))
        || pg_catalog.convert_to(p_tenant, 'UTF8') || pg_catalog.convert_to(p_thread_id, 'UTF8')
    ), 1, 16), 'hex')::uuid
$$;
