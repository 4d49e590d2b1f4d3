-- The tenant of this transaction. Raises when it was never set, and when it was set in a transaction that is over.
CREATE FUNCTION compaction_store.tenant() RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenant text := current_setting('compaction_store.tenant', true);
BEGIN
    IF v_tenant IS NULL OR v_tenant = '' THEN
        RAISE EXCEPTION 'compaction_store.tenant is not set' USING ERRCODE = 'CS009';
    END IF;
    RETURN v_tenant;
END
$$;
