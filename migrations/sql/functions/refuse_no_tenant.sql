-- Raises the error of tenant(). Checks the setting again, because Citus evaluates all branches of a CASE in advance.
CREATE FUNCTION compaction_store.refuse_no_tenant() RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('compaction_store.tenant', true) <> '' THEN
        RETURN current_setting('compaction_store.tenant', true);
    END IF;
    RAISE EXCEPTION 'compaction_store.tenant is not set'
        USING ERRCODE = 'CS009', HINT = 'SET compaction_store.tenant = ''default'', or another tenant; on a Citus '
            'cluster, use SET LOCAL in the transaction of the query. Only a login with BYPASSRLS, or a superuser, can '
            'read all tenants at once';
END
$$;
