-- Roles belong to the whole server and may exist already. If this login may not make roles, it owns all objects, and
-- the owner of the database must grant privileges.
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY[
        'compaction_store_owner', 'compaction_store_app', 'compaction_store_auditor', 'compaction_store_loader',
        'compaction_store_reviewer', 'compaction_store_eraser', 'compaction_store_custodian'
    ] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = v_role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOBYPASSRLS', v_role);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege THEN RETURN;
            END;
        END IF;
    END LOOP;
    -- Only a member of a role can make it the owner of objects.
    BEGIN
        GRANT compaction_store_owner TO CURRENT_USER;
    EXCEPTION WHEN insufficient_privilege THEN NULL;
    END;
END
$$;
