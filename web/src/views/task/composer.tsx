import type { FormEvent } from 'react';
import type { Task } from '../../api/client';
import { actions, useAction } from '../../api/queries';
import { counted } from '../../model/format';
import { asksYou, hasEnded } from '../../model/work';
import { Button, Problem } from '../../parts/controls';
import { useToast } from '../../parts/toast';
import { submitOnCommand, withCommand } from '../../shell/keys';
import { useLink } from '../../shell/link';
import { usePreference } from '../../shell/preferences';
import { useComments } from '../comments';
import { WorkLink } from '../work_link';

const DELIVERY = {
  now: 'Delivered now.',
  next_attempt: 'Will be delivered after this attempt.',
};

/** The next message to an agent: delivered to a running one, or the prompt of the next attempt. */
export function Composer({ task }: { task: Task }) {
  const [typed, setTyped] = usePreference(`message.${task.id}`, '');
  const away = useLink().state === 'away';
  const tell = useToast();
  const comments = useComments(task.id).all.length;
  const resume = useAction((message: string) => actions.resume(task.id, message));
  const say = useAction((message: string) => actions.say(task.id, message));
  const ended = hasEnded(task);
  const does = ended ? resume : say;
  const action = ended ? 'Continue' : 'Send';
  if (task.attempts.length === 0 || task.archived_at || asksYou(task) || (task.interactive && !ended))
    return null;
  const send = () => {
    const message = typed.trim();
    if (!message || does.isPending) return;
    if (ended) resume.mutate(message, { onSuccess: () => setTyped('') });
    else
      say.mutate(message, {
        onSuccess: ({ told }) => {
          setTyped('');
          tell({ state: 'queued', text: DELIVERY[told] });
        },
      });
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    send();
  };
  return (
    <form className="composer" onSubmit={submit}>
      <div className="box">
        <textarea
          // biome-ignore lint/a11y/noAutofocus: one has come here to type
          autoFocus={location.hash === '#continue'}
          aria-label={ended ? 'Continue this conversation' : 'Message the agent'}
          placeholder={ended ? 'What should it do next?' : 'Message the agent'}
          rows={1}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
          onKeyDown={submitOnCommand}
        />
        <div className="row">
          <span>
            {ended
              ? `starts attempt ${task.attempts.length + 1} from the current branch`
              : 'delivered now if the agent supports it, otherwise after this attempt'}
          </span>
          {comments > 0 && (
            <WorkLink work={task} tab="changes" className="c-you">
              {counted(comments, 'comment')} not sent
            </WorkLink>
          )}
          <Button
            small
            type="submit"
            hotkey={withCommand('↵')}
            disabled={away || does.isPending || !typed.trim()}
          >
            {does.isPending ? 'Sending…' : action}
          </Button>
        </div>
        <Problem error={does.error} />
      </div>
    </form>
  );
}
