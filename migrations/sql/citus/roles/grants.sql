-- Grants on objects that only a cluster has. roles/grants.sql cannot make them, because it runs before these objects
-- exist.
DO $$
DECLARE
    v_name text;
    v_has_roles boolean;
BEGIN
    SELECT count(*) = 7 INTO v_has_roles FROM pg_catalog.pg_roles WHERE rolname IN (
        'compaction_store_owner', 'compaction_store_app', 'compaction_store_auditor', 'compaction_store_loader',
        'compaction_store_reviewer', 'compaction_store_eraser', 'compaction_store_custodian'
    );
    FOR v_name IN
        SELECT pg_catalog.format(
            '%I.%I(%s)', n.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)
        )
        FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'compaction_store'
            AND p.proname IN (
                'name_uid', 'named_thread', 'name_thread', 'unname_thread', 'open_named_thread', 'claim_name', 'stage',
                'end_turns', 'join_transaction', 'new_uid_beside', 'is_beside', 'refuse_moved'
            )
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_name);
        IF v_has_roles THEN
            EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO compaction_store_owner', v_name);
        END IF;
    END LOOP;
    IF NOT v_has_roles THEN
        RETURN;
    END IF;
    ALTER TABLE compaction_store.names OWNER TO compaction_store_owner;
    -- verify_all compares the names with the threads.
    GRANT SELECT ON compaction_store.names TO compaction_store_app, compaction_store_auditor;
    GRANT EXECUTE ON FUNCTION compaction_store.named_thread
        TO compaction_store_app, compaction_store_auditor, compaction_store_loader, compaction_store_reviewer,
        compaction_store_eraser, compaction_store_custodian;
    -- A reviewer, an eraser and a custodian may make the log of a tenant.
    GRANT EXECUTE ON FUNCTION compaction_store.name_thread, compaction_store.open_named_thread
        TO compaction_store_app, compaction_store_loader, compaction_store_reviewer, compaction_store_eraser,
        compaction_store_custodian;
    GRANT EXECUTE ON FUNCTION compaction_store.claim_name TO compaction_store_app, compaction_store_loader;
    GRANT EXECUTE ON FUNCTION compaction_store.stage TO compaction_store_loader;
    GRANT EXECUTE ON FUNCTION
        compaction_store.unname_thread, compaction_store.end_turns, compaction_store.join_transaction
        TO compaction_store_app, compaction_store_eraser;
END
$$;
