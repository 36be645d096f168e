import { type FormEvent, type KeyboardEvent, useState } from 'react';
import type { Task } from '../../api/client';
import { actions, useAction } from '../../api/queries';
import { hasEnded } from '../../model/work';
import { Button, Problem } from '../../parts/controls';
import { useLink } from '../../shell/link';

/** Goes on with a task that has ended: what is typed is the next message to its agent. */
export function Composer({ task }: { task: Task }) {
  const [typed, setTyped] = useState('');
  const away = useLink().state === 'away';
  const resume = useAction((message: string) => actions.resume(task.id, message));
  if (!hasEnded(task) || task.attempts.length === 0 || task.archived_at) return null;
  const send = () => {
    if (typed.trim() && !resume.isPending) resume.mutate(typed.trim(), { onSuccess: () => setTyped('') });
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    send();
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && (event.metaKey || event.ctrlKey)) send();
  };
  return (
    <form className="composer" onSubmit={submit}>
      <div className="box">
        <textarea
          aria-label="Continue this conversation"
          placeholder="Continue this conversation: what next?"
          rows={1}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
          onKeyDown={press}
        />
        <div className="row">
          <span>attempt {task.attempts.length + 1}, with what the last one left</span>
          <Button small type="submit" hotkey="⌘↵" disabled={away || resume.isPending || !typed.trim()}>
            {resume.isPending ? 'Sending' : 'Continue'}
          </Button>
        </div>
        <Problem error={resume.error} />
      </div>
    </form>
  );
}
