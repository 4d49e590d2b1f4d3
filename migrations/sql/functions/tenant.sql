-- Returns the tenant of this transaction, and raises an error if there is none. The tenant is set for one transaction
-- only, because connections behind a pooler are shared. The function has no SET clause, so that it can be inlined into
-- policies.
CREATE FUNCTION compaction_store.tenant() RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN pg_catalog.current_setting('compaction_store.tenant', true) <> ''
            THEN pg_catalog.current_setting('compaction_store.tenant', true)
        ELSE compaction_store.refuse_no_tenant()
    END
$$;
