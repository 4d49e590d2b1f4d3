CREATE FUNCTION compaction_store.refuse_no_tenant() RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'compaction_store.tenant is not set'
        USING ERRCODE = 'CS009', HINT = 'SET compaction_store.tenant = ''default'', or whose threads are wanted';
END
$$;
