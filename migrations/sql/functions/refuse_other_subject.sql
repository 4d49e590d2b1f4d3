-- Raises an error if an append names a subject and the thread does not have this subject.
CREATE FUNCTION compaction_store.refuse_other_subject(p_subject text, p_stored text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_subject IS DISTINCT FROM p_stored AND p_subject IS NOT NULL THEN
        RAISE EXCEPTION 'the thread %', CASE
            WHEN p_stored IS NULL THEN 'has no subject: set it with set_subject' ELSE 'has another subject'
        END USING ERRCODE = 'CS032';
    END IF;
END
$$;
