-- Returns whether the caller may call a function. A function that calls this one runs as its owner, so the caller is the
-- role that the session has set, or its login.
CREATE FUNCTION compaction_store.caller_may(p_function text) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_role text := current_setting('role');
BEGIN
    RETURN has_function_privilege(CASE v_role WHEN 'none' THEN session_user ELSE v_role END, p.oid, 'EXECUTE')
    FROM pg_proc AS p WHERE p.pronamespace = 'compaction_store'::regnamespace AND p.proname = p_function;
END
$$;
