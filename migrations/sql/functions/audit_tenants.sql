-- Returns the tenants whose rows the audit views show: the tenant in compaction_store.tenant, or all tenants if
-- compaction_store.all_tenants is on. Raises an error if neither is set, or if row-level security would hide some
-- tenants.
CREATE FUNCTION compaction_store.audit_tenants() RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF nullif(current_setting('compaction_store.all_tenants', true), '')::boolean THEN
        RETURN QUERY SELECT t.tenant FROM compaction_store.tenants('', NULL) AS t (tenant);
    ELSE
        RETURN NEXT compaction_store.tenant();
    END IF;
END
$$;
