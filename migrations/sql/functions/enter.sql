-- Sets the tenant for the rest of this transaction, and for no longer: behind a pooler the connection is shared.
CREATE FUNCTION compaction_store.enter(p_tenant text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_tenant IS NULL OR p_tenant = '' THEN
        RAISE EXCEPTION 'compaction_store.tenant is not set' USING ERRCODE = 'CS009';
    END IF;
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
END
$$;
