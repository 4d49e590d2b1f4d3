-- Raises an error if a message breaks a rule of docs/integrity.md, section 2, or if p_role is not the payload's role.
-- Otherwise returns true. A text that is not JSON is refused later, when it is stored as json.
--
-- The function runs for every append. Postgres puts its expression into the caller's, so that a usual message costs no
-- call: it has no meta, is not long, starts with a usual role, has "role" nowhere else, and has no escape that could hide
-- a "role". It has at most 200 brackets, so its levels are at most 200 too.
CREATE FUNCTION compaction_store.refuse_bad_message(p_payload text, p_role text, p_meta text) RETURNS boolean
LANGUAGE sql
AS $$
    SELECT CASE
        WHEN p_meta IS NULL
            AND octet_length(p_payload) <= 4300
            AND p_role IN ('user', 'assistant', 'tool', 'system', 'developer')
            AND starts_with(p_payload, '{"role":"' || p_role || '"')
            AND position('"role"'::bytea IN substring(convert_to(p_payload, 'UTF8') FROM 9)) = 0
            AND position(E'\\u00' IN p_payload) = 0
            AND (
                octet_length(p_payload) <= 400
                OR octet_length(p_payload) - octet_length(replace(replace(p_payload, '{', ''), '[', '')) <= 200
            )
            THEN true
        ELSE compaction_store.refuse_bad_unusual_message(p_payload, p_role, p_meta)
    END
$$;
