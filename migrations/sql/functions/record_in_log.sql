-- Records an event that concerns no single thread in the log of a tenant, and makes the log at the first event. The
-- tenant "compaction-store" has the log of the database. A policy, a removal and a shred need the rights of an
-- eraser, a rule those of a custodian, a verification those of any caller, and all other kinds those of the owner.
CREATE FUNCTION compaction_store.record_in_log(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_kind text, p_actor text, p_salt bytea, p_body text,
    OUT event_pos bigint, OUT written_at timestamptz, OUT written_login text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    IF (p_thread_id = 'compaction-store:log' AND compaction_store.is_of_log(p_kind)) IS NOT TRUE
        OR (p_kind IN ('removal', 'grant', 'ungrant', 'migration') AND p_tenant <> 'compaction-store')
    THEN
        RAISE EXCEPTION 'p_kind must be a kind of event that belongs to this log' USING ERRCODE = 'CS008';
    END IF;
    IF p_kind <> 'verification' AND NOT compaction_store.caller_may(
        CASE WHEN p_kind IN ('policy', 'removal', 'shred') THEN 'erase' WHEN p_kind = 'rule' THEN 'record_event' ELSE 'write_event' END
    ) THEN
        RAISE EXCEPTION 'this login may not record an event of kind %: grant it %', p_kind,
            CASE
                WHEN p_kind IN ('policy', 'removal', 'shred') THEN 'compaction_store_eraser'
                WHEN p_kind = 'rule' THEN 'compaction_store_custodian'
                ELSE 'compaction_store_owner'
            END
            USING ERRCODE = 'CS024';
    END IF;
    p_thread_uid := coalesce(
        p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id),
        compaction_store.open_thread(p_tenant, p_thread_id, NULL, NULL, true)
    );
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT r.event_pos, r.written_at, r.written_login INTO event_pos, written_at, written_login
    FROM compaction_store.record_once(p_thread_uid, p_kind, p_actor, p_salt, p_body) AS r;
END
$$;
