-- Returns a page of the tenants that have threads, in byte order. The login must be exempt from row-level security,
-- because any other login would see only its own tenant. The function takes one index probe for each tenant.
CREATE FUNCTION compaction_store.tenants(p_after text, p_limit integer) RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenant text := coalesce(p_after, '');
    v_left integer := coalesce(p_limit, 2147483647);
BEGIN
    IF row_security_active('compaction_store.threads') THEN
        RAISE EXCEPTION 'the login must have BYPASSRLS to see all tenants: ALTER ROLE … BYPASSRLS, or name one tenant'
            USING ERRCODE = 'CS023';
    END IF;
    WHILE v_left > 0 LOOP
        SELECT min(t.tenant) INTO v_tenant FROM compaction_store.threads AS t WHERE t.tenant > v_tenant;
        EXIT WHEN v_tenant IS NULL;
        RETURN NEXT v_tenant;
        v_left := v_left - 1;
    END LOOP;
END
$$;
