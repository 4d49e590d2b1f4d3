-- Grants each role its privileges, revokes those of PUBLIC, and makes compaction_store_owner, a role that cannot log in,
-- the owner of the tables, views and functions. If the roles could not be made, the login that migrates stays the
-- owner.
DO $$
DECLARE
    v_object record;
    v_may boolean;
BEGIN
    FOR v_object IN
        SELECT format('%I.%I', n.nspname, p.proname) || '(' || pg_get_function_identity_arguments(p.oid) || ')' AS name
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'compaction_store'
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_object.name);
    END LOOP;
    REVOKE ALL ON SCHEMA compaction_store FROM PUBLIC;

    SELECT count(*) = 7 INTO v_may FROM pg_roles WHERE rolname IN (
        'compaction_store_owner', 'compaction_store_app', 'compaction_store_auditor', 'compaction_store_loader',
        'compaction_store_reviewer', 'compaction_store_eraser', 'compaction_store_custodian'
    );
    IF NOT v_may THEN
        RETURN;
    END IF;

    GRANT USAGE ON SCHEMA compaction_store
        TO compaction_store_app, compaction_store_auditor, compaction_store_loader, compaction_store_reviewer,
        compaction_store_eraser, compaction_store_custodian;
    -- A role needs CREATE on the schema to become the owner of its tables.
    GRANT USAGE, CREATE ON SCHEMA compaction_store TO compaction_store_owner;
    GRANT SELECT, INSERT, UPDATE, DELETE ON compaction_store.alembic_version TO compaction_store_owner;
    GRANT SELECT ON
        compaction_store.alembic_version, compaction_store.threads, compaction_store.heads, compaction_store.messages,
        compaction_store.compactions, compaction_store.events, compaction_store.audit_threads,
        compaction_store.audit_messages, compaction_store.audit_compactions, compaction_store.audit_events
        TO compaction_store_app, compaction_store_auditor;
    -- Views with security_invoker call functions with the rights of the querying login.
    GRANT EXECUTE ON FUNCTION
        compaction_store.tenants, compaction_store.audit_tenants, compaction_store.audit_json,
        compaction_store.retained_until, compaction_store.is_locked, compaction_store.superseded_by
        TO compaction_store_app, compaction_store_auditor;
    -- The loader may write only these columns directly; finish_import checks them. staged_by must keep its default, the
    -- number of the transaction.
    GRANT INSERT (
        thread_uid, type, ordinal, pos, created_at, redacted_pos, salt, commitment, entry, body, tokens,
        call_size, role, counter, key, receipt, meta_commitment, meta, critical, kind, outcome, start_seq,
        end_seq, tokens_before, tokens_after, source_count, revokes, run_id, callback, trigger,
        actor, login, model, inputs, source_before, source_end
    ) ON compaction_store.staged TO compaction_store_loader;
    -- Opening a store reads the revision of the schema.
    GRANT SELECT ON compaction_store.alembic_version TO compaction_store_loader, compaction_store_reviewer,
        compaction_store_eraser, compaction_store_custodian;
    GRANT EXECUTE ON FUNCTION
        compaction_store.tenant, compaction_store.refuse_no_tenant, compaction_store.replay, compaction_store.newest,
        compaction_store.view, compaction_store.outline, compaction_store.compare, compaction_store.element,
        compaction_store.elements, compaction_store.neighbours, compaction_store.pos_at,
        compaction_store.thread, compaction_store.entries,
        compaction_store.thread_state, compaction_store.events, compaction_store.feed, compaction_store.reported
        TO compaction_store_app, compaction_store_auditor, compaction_store_loader;
    -- Applications must not have this function, because they could block all checkpoints with it.
    GRANT EXECUTE ON FUNCTION compaction_store.checkpoint_turn TO compaction_store_auditor;
    GRANT EXECUTE ON FUNCTION
        compaction_store.append, compaction_store.append_many, compaction_store.append_observed,
        compaction_store.append_together, compaction_store.set_metadata, compaction_store.set_subject,
        compaction_store.commit_compactions,
        compaction_store.rewind,
        compaction_store.lease, compaction_store.renew_lease, compaction_store.release, compaction_store.stalled,
        compaction_store.record_evaluation, compaction_store.fork,
        compaction_store.take_turn, compaction_store.renew_turn, compaction_store.leave_turn, compaction_store.hold_turn
        TO compaction_store_app;
    GRANT EXECUTE ON FUNCTION
        compaction_store.find_load, compaction_store.load, compaction_store.load_threads, compaction_store.observe,
        compaction_store.begin_import, compaction_store.finish_import, compaction_store.set_metadata
        TO compaction_store_loader;

    -- An application must not have these functions unless it is granted the roles: the program that writes should neither
    -- erase nor end a hold. Both roles need the functions that find a thread and show its holds, and read no content.
    GRANT EXECUTE ON FUNCTION compaction_store.redact, compaction_store.erase TO compaction_store_eraser;
    -- A retention policy finds threads by the time of their last message, and erasures by their events.
    GRANT EXECUTE ON FUNCTION compaction_store.tenant, compaction_store.refuse_no_tenant TO compaction_store_eraser;
    GRANT SELECT (thread_uid, tenant, thread_id, created_at) ON compaction_store.threads TO compaction_store_eraser;
    GRANT SELECT (thread_uid, tenant, last_seq, last_pos, active_at, active_hour, subject) ON compaction_store.heads
        TO compaction_store_eraser;
    GRANT SELECT (thread_uid, tenant, seq, created_at) ON compaction_store.messages TO compaction_store_eraser;
    GRANT SELECT ON compaction_store.events TO compaction_store_eraser;
    GRANT EXECUTE ON FUNCTION compaction_store.record_event, compaction_store.set_subject TO compaction_store_custodian;
    GRANT EXECUTE ON FUNCTION compaction_store.thread, compaction_store.events
        TO compaction_store_eraser, compaction_store_custodian;

    -- The function allows each caller only some kinds of events.
    GRANT EXECUTE ON FUNCTION compaction_store.record_in_log
        TO compaction_store_app, compaction_store_reviewer, compaction_store_eraser, compaction_store_custodian;

    -- Applications must not have this function, because nobody should judge their own compactions.
    GRANT EXECUTE ON FUNCTION compaction_store.record_verdict TO compaction_store_reviewer;

    BEGIN
        FOR v_object IN
            SELECT c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = 'compaction_store' AND c.relkind IN ('r', 'p', 'v') AND c.relname <> 'alembic_version'
        LOOP
            EXECUTE format('ALTER TABLE compaction_store.%I OWNER TO compaction_store_owner', v_object.name);
        END LOOP;
        FOR v_object IN
            SELECT format('%I.%I', n.nspname, p.proname) || '(' || pg_get_function_identity_arguments(p.oid) || ')'
                AS name
            FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'compaction_store'
        LOOP
            EXECUTE format('ALTER FUNCTION %s OWNER TO compaction_store_owner', v_object.name);
        END LOOP;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE NOTICE 'schema compaction_store belongs to %, who may not give it to compaction_store_owner', CURRENT_USER;
    END;
END
$$;
