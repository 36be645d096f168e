import { type FormEvent, useId, useState } from 'react';
import { isRun, type Work } from '../api/client';
import { actions, useAction } from '../api/queries';
import { Button, Problem } from '../parts/controls';
import { Said } from '../parts/text';

interface Asked {
  token: string | null;
  text: string;
  otherwise: string | null;
}

function questionsOf(work: Work): Asked[] {
  if (isRun(work) && work.questions.length > 0) {
    return work.questions.map(({ token, text, default: otherwise }) => ({ token, text, otherwise }));
  }
  return [{ token: null, text: work.question ?? work.reason ?? '', otherwise: null }];
}

/** What a piece of work asks, each with its field. */
export const Questions = ({ work }: { work: Work }) =>
  questionsOf(work).map((asked) => <OneQuestion key={asked.token ?? ''} work={work} asked={asked} />);

function OneQuestion({ work, asked }: { work: Work; asked: Asked }) {
  const id = useId();
  const [typed, setTyped] = useState('');
  const answer = useAction((text: string) =>
    isRun(work) ? actions.answer(work.id, text, asked.token) : actions.resume(work.id, text),
  );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (typed.trim()) answer.mutate(typed.trim());
  };
  return (
    <form onSubmit={submit}>
      <p className="ask" id={`${id}-ask`}>
        <Said>{asked.text}</Said>
      </p>
      {asked.otherwise && (
        <div className="choices">
          <Button disabled={answer.isPending} onClick={() => answer.mutate(asked.otherwise ?? '')}>
            <Said>{asked.otherwise}</Said> <span className="faint">its default</span>
          </Button>
        </div>
      )}
      <div className="answer">
        <label className="vh" htmlFor={id}>
          Answer
        </label>
        <input
          className="field"
          id={id}
          aria-describedby={`${id}-ask`}
          placeholder={asked.otherwise ? 'Or in your own words' : 'Your answer'}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <Button type="submit" look="primary" hotkey="↵" disabled={answer.isPending || !typed.trim()}>
          {answer.isPending ? 'Sending' : 'Answer'}
        </Button>
      </div>
      <Problem error={answer.error} />
    </form>
  );
}
