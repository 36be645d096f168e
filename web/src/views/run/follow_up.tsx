import { useNavigate } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import type { Run } from '../../api/client';
import { actions, useAction } from '../../api/queries';
import { hasEnded } from '../../model/work';
import { Problem } from '../../parts/controls';
import { submitOnCommand, withCommand } from '../../shell/keys';
import { Act } from '../act';

/** Goes on with what an ended run left: what is typed is asked of a new task on its branch. */
export function FollowUp({ run }: { run: Run }) {
  const [typed, setTyped] = useState('');
  const navigate = useNavigate();
  const follow = useAction((message: string) => actions.follow(run.id, message));
  // A merged branch is gone.
  if (!hasEnded(run) || run.archived_at || run.merged_at || !run.workspace.branch) return null;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (typed.trim() && !follow.isPending)
      follow.mutate(typed.trim(), { onSuccess: ({ id }) => void navigate({ to: `/tasks/${id}` }) });
  };
  return (
    <form className="composer still" onSubmit={submit}>
      <div className="box">
        <textarea
          // biome-ignore lint/a11y/noAutofocus: one has come here to type
          autoFocus={location.hash === '#continue'}
          aria-label="Continue this run"
          placeholder="What is left to do?"
          rows={1}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
          onKeyDown={submitOnCommand}
        />
        <div className="row">
          <span>starts a follow-up task on this branch with the same checks</span>
          <Act small type="submit" hotkey={withCommand('↵')} disabled={follow.isPending || !typed.trim()}>
            {follow.isPending ? 'Sending' : 'Continue'}
          </Act>
        </div>
        <Problem error={follow.error} />
      </div>
    </form>
  );
}
