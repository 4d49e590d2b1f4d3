-- Raises an error if an erasure insists, that is, overrides a hold or a retention, and the caller may not end a hold. An
-- eraser alone works within the holds and terms that a custodian sets. The function runs as its owner, so the caller is
-- the role that the session has set, or its login.
CREATE FUNCTION compaction_store.refuse_override(p_insist boolean) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_role text := current_setting('role');
BEGIN
    IF p_insist AND NOT has_function_privilege(
        CASE v_role WHEN 'none' THEN session_user ELSE v_role END,
        'compaction_store.record_event(uuid, text, text, text, text, bytea, text)', 'EXECUTE'
    ) THEN
        RAISE EXCEPTION 'only a custodian may override a hold or a retention: grant this login compaction_store_custodian'
            USING ERRCODE = 'CS024';
    END IF;
END
$$;
